"""Figures of collectives: sizes as people write them, and how many iterations every point stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dynbench.analysis.figures.bench_collectives import bench_bandwidth, bench_collectives
from dynbench.analysis.figures.style import Drawing
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import csv_text

MIB = 2**20
Draw = Callable[[Run], Drawing | None]


@pytest.mark.parametrize("draw", [bench_collectives, bench_bandwidth])
@pytest.mark.parametrize(("counts", "said"), [((20, 20, 20), "n = 20 iter"), ((20, 20, 4), "n = 4 to 20 iter")])
def test_sizes_and_iterations_are_said(store: RunStore, draw: Draw, counts: Sequence[int], said: str) -> None:
    run = store.create("bench", "collectives")
    shown = {"status": "ok", "operation": "all_reduce", "processes": 2, "backend": "gloo", "type": "float32"}
    times = {"p20": 1.0, "p50": 2.0, "p80": 3.0, "busbw": 1.0}
    sizes = zip((MIB, 100 * MIB, 1000 * MIB), counts, strict=True)
    write_text(run.path / "rows.csv", csv_text([{**shown, **times, "size": size, "n": n} for size, n in sizes]))
    drawing = draw(run)
    assert drawing is not None
    figure = drawing.figure
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1.05", "105", "1050"]
    assert any(said in text.get_text() for text in figure.texts)

"""Every figure, drawn from recorded runs: no text covers another, no panel is empty, and axes have ticks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from golden.corpus import unpack
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from dynbench.analysis.figures import FIGURES, draw_figures
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace

RECORDED = ("quickstart", "levers", "sync_xl", "compression", "ps_allreduce_ddp", "fsdp_bottleneck", "regimes", "bench")
"""Recordings of the goldens that together have every figure but those of `solve`."""


def labels_of(axis: Axis) -> list[Text]:
    """The labels of the ticks that are on an axis; matplotlib keeps some beyond its ends."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    labels = [label for tick in ticks for label in (tick.label1, tick.label2)]  # those of a colour bar are the second
    return [label for label in labels if label.get_visible() and label.get_text()]


def faults(figure: Figure) -> list[str]:
    """Texts that lie on another or leave the figure, panels without anything in them, labels of axes without ticks."""
    figure.draw_without_rendering()
    axes = [(each.xaxis, each.yaxis) for each in figure.axes]
    ticks = {id(label) for pair in axes for axis in pair for label in axis.get_majorticklabels()}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if id(text) not in ticks]
    texts += [label for pair in axes for axis in pair for label in labels_of(axis)]
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    found = [f"{one!r} on {other!r}" for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
    found += [f"{text!r} leaves" for text, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.x1 + 1]
    found += [f"{each.get_title()!r} is empty" for each in figure.axes if not each.has_data()]
    named = [axis for pair in axes for axis in pair if axis.label.get_text() and len(axis.get_majorticklocs())]
    return [*found, *(f"{axis.label.get_text()!r} has no ticks" for axis in named if not labels_of(axis))]


@pytest.mark.slow
def test_every_figure_is_drawn_without_a_fault(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[str]] = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path: drawn.setdefault(Path(path).stem, []).extend(faults(self))
    )
    for name in RECORDED:
        store = RunStore(tmp_path / name)
        unpack(name, store.root)
        for entry in sorted(store.root.glob("*/comparison.json")):
            assert main(["analyze", entry.parent.name, "--quiet", "--results", str(store.root)]) == 0
        for kind, of_kind in (("bench", "bench.json"), ("cells", "cells.json")):
            for entry in store.root.glob(f"*/{of_kind}"):
                draw_figures(kind, Run(entry.parent), tmp_path)  # type: ignore[arg-type]  # one of the kinds
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 500).astype(np.int64), 2, 300)
    options = SolveOptions([Trace("made", lengths, "here")], (2, 4), ("static", "partition", "prefix"), steps=8)
    draw_figures("solve", run_solve(load_config(), options, RunStore(tmp_path)).run, tmp_path)
    few = [merge_run(make_run(policy)) for policy in ("static", "partition")]
    draw_figures("train", [ArmView(f"{number} of many arms", (few[number % 2],)) for number in range(12)], tmp_path)
    assert {name: found for name, found in drawn.items() if found} == {}
    assert set(drawn) == {name for figures in FIGURES.values() for name in figures}

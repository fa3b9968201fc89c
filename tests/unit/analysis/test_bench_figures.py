"""Figures of benchmarks: nothing that is written at an axis covers its neighbour, and sums that are exact are drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from unit.analysis.test_drawings_explained import benched

from dynbench.analysis.figures import FIGURES, draw_figure, style
from dynbench.bench.precision import HALF, SUMS
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import csv_text


def covered(figure: Figure) -> list[str]:
    """Labels of ticks that lie on the one before."""

    def of(axis: Axis) -> list[str]:
        labels = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
        boxes = [(label.get_text(), label.get_window_extent()) for label in labels]
        return [text for (_, before), (text, box) in pairwise(boxes) if box.overlaps(before)]

    figure.draw_without_rendering()
    return [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in of(axis)]


@pytest.mark.slow
def test_labels_of_ticks_do_not_cover_each_other(make_run: Callable[..., Run], store: RunStore) -> None:
    drawn = set()
    for source in benched(make_run, store):
        for name in FIGURES["bench"]:
            with matplotlib.rc_context(style.RC):
                drawing = draw_figure("bench", name, source)
                if drawing is not None:
                    drawn.add(name)
                    assert covered(drawing.figure) == [], name
    assert drawn == set(FIGURES["bench"])
    with matplotlib.rc_context(style.RC):
        figure, (axes,) = style.new_figure("x", "y", width_in=2)
        axes.bar(["a label that is long", "another that is"], [1, 2])
        assert covered(figure) == ["another that is"]


def test_a_sum_without_error_has_its_number_and_no_mark(store: RunStore) -> None:
    run = store.create("bench", "precision")
    shown = {"status": "ok", "device": "cpu", "shape": "[10]", "n": 1, "mean": 1.0, "sd": None}
    rows = [{**shown, "study": "sum", "case": label, "dtype": "float32", "reference_error": 0.0} for label in SUMS]
    times = [{**shown, "study": "time", "case": kind, "dtype": kind, "reference_error": None} for kind in HALF]
    write_text(run.path / "rows.csv", csv_text([*rows, *times]))
    drawing = draw_figure("bench", "bench_precision", run)
    assert drawing is not None
    assert [text.get_text() for text in drawing.figure.axes[0].texts] == ["0"] * len(SUMS)
    write_text(run.path / "rows.csv", csv_text(rows))
    assert draw_figure("bench", "bench_precision", run) is None

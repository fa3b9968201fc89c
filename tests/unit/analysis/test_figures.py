"""Figures: their numbers, captions and legends."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
import pytest
from golden.accepted import read_accepted
from golden.layout import WATCHED, looked_at
from matplotlib.image import imread
from matplotlib.lines import Line2D
from unit.analysis.conftest import Make

import dynbench.analysis.figures as registry
from dynbench.analysis.figures import FIGURES, charts, draw_figure, draw_figures, timeline
from dynbench.analysis.figures.charts import GREY, looks
from dynbench.analysis.figures.timeline import typical_step
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.errors import RecordError
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace


@pytest.fixture
def view(make_run):
    def make(*policies, launches=1, **fields):
        return [
            ArmView(policy, tuple(merge_run(make_run(policy, **fields)) for _ in range(launches)))
            for policy in policies
        ]

    return make


def test_one_module_chooses_a_backend_and_nothing_uses_pyplot():
    for path in Path(registry.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any("pyplot" in name for name in imported), path.name
        assert ("matplotlib.use" in path.read_text()) == (path.name == "charts.py")
    assert matplotlib.get_backend().lower() == "agg"


ASKED = (
    *("epochs", "strategies", "loss_curves", "bucket_steps", "comm_timeline"),
    *("communication_map", "compression", "messages"),
)
"""What figures begin with that need more than two policies: epochs, strategies, calls, links, compressors, a server."""
DRAWN = [name for name in FIGURES["train"] if not name.startswith(ASKED)]


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_figure_comes_with_its_numbers(view, tmp_path):
    files = draw_figures("train", view("static") + view("partition", world_size=4), tmp_path)
    assert [path.name for path in files] == [f"{name}.{kind}" for name in DRAWN for kind in ("png", "csv")]
    for path in files:
        if path.suffix == ".png":
            image = imread(path)
            assert image.shape[1] >= 800
            assert image[..., :3].std() > 0.05
        else:
            table = pl.read_csv(path)
            assert table.height > 0
            assert set(table["arm"]) == {"static", "partition"}


@pytest.mark.slow
def test_the_slowest_of_many_ranks_is_always_shown(view, tmp_path):
    (arm,) = view("partition", world_size=60, global_batch=120, steps=12)
    draw_figures("train", [arm], tmp_path)
    shown = pl.read_csv(tmp_path / "timeline.csv")
    every = arm.runs[0].rank_rows(int(shown["step"][0]))
    assert shown["compute_ms"].max() == pytest.approx(every["compute_ms"].max())


@pytest.mark.slow
def test_many_ranks_are_judged_by_all_of_them_and_not_by_those_shown(view):
    arms = view("static", "partition", world_size=60, global_batch=120, steps=12, noise=0.0)
    drawing = timeline.timeline(arms)
    texts = " ".join(" ".join(text.get_text().split()) for text in drawing.figure.texts)
    assert "All arms compute the same samples." in texts
    every = [arm.runs[0].rank_rows(typical_step(arms)) for arm in arms]
    for rows, axes in zip(every, drawing.figure.axes, strict=True):
        waiting = rows["wait_ms"].mean() / rows["step_time_max_ms"][0]
        assert f"{100 * waiting:.0f} % of the ranks' time is waiting" in axes.get_title()
    step_ms = every[0]["step_time_max_ms"][0]
    drawn = drawing.table.filter(arm="static")["wait_ms"].mean() / step_ms
    assert f"{100 * drawn:.0f}" != f"{100 * every[0]['wait_ms'].mean() / step_ms:.0f}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sentence", "lines"), [("A long caption. ", 5), ("hf_batch_rebalance-1-mnud … hf_batch_rebalance-4-mnud; ", 14)]
)
def test_caption_and_legend_keep_clear_of_the_panels(sentence, lines):
    names = ["a third one with a long name" if index == 2 else f"number {index}" for index in range(lines)]
    legend = [Line2D([], [], label=name) for name in names]
    with matplotlib.rc_context(charts.RC):
        figure, panels = charts.new_figure("Title", sentence * 40, panels=4, columns=2, legend=legend)
    figure.set_dpi(charts.RC["savefig.dpi"])
    for axes in panels:
        axes.set(xlabel="x (ms)", ylabel="y (ms)")
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in panels]
    others = [text.get_window_extent() for text in (*figure.texts, *figure.legends)]
    assert not any(box.overlaps(other) for box in boxes for other in others)
    assert not any(a.overlaps(b) for i, a in enumerate(others) for b in others[:i])
    assert all(other.x1 <= figure.bbox.x1 and other.x0 >= 0 for other in others)


def test_few_series_have_colours_and_of_many_only_the_important_ones():
    few = looks([f"{index}" for index in range(7)])
    assert len({look.color for look in few.values()}) == len({look.marker for look in few.values()}) == 7
    many = looks([f"{index}" for index in range(20)], ["0", "5", "9"])
    assert [name for name, look in many.items() if look.color != GREY] == ["0", "5", "9"]
    assert len({many[name].color for name in ("0", "5", "9")}) == 3


def test_nothing_is_drawn_where_nothing_compresses(view) -> None:
    names = [name for name in FIGURES["train"] if name.startswith("compression")]
    assert names
    for name in names:
        assert draw_figure("train", name, view("static")) is draw_figure("train", name, []) is None


def test_nothing_is_drawn_before_a_comparison_has_ended(store, tmp_path):
    together = store.create("compare", "regimes")
    unfinished = {"settings": {}, "comparison": store.create("compare", "cell").id}
    for cells in ([], [unfinished]):
        (together.path / "cells.json").write_text(json.dumps({"recipe": "regimes", "cells": cells}))
        assert draw_figures("cells", together, tmp_path) == []
    (together.path / "cells.json").write_text("{")
    with pytest.raises(RecordError, match=r"cells\.json"):
        draw_figures("cells", together, tmp_path)


def solved(folder: Path, *policies: str, steps: int = 8) -> Run:
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 500).astype(np.int64), 2, 300)
    options = SolveOptions([Trace("made", lengths, "here")], (2, 4), policies, windows=(2, 4), steps=steps)
    return run_solve(load_config(), options, RunStore(folder)).run


@pytest.mark.slow
def test_figures_of_plans_and_of_many_arms_are_drawn_without_a_fault_as_all_others_are(view, tmp_path: Path) -> None:
    """Every figure is looked at: those of recorded runs in the goldens, those of plans and of many arms here."""
    few = view("static", "partition")
    many = [ArmView(f"{number} of many arms", few[number % 2].runs) for number in range(12)]
    with looked_at() as drawn:
        draw_figures("solve", solved(tmp_path, "static", "partition", "prefix"), tmp_path)
        draw_figures("train", many, tmp_path)
    assert {name: found for name, found in drawn.items() if found} == {}
    files = [
        file
        for name in WATCHED
        for key, value in read_accepted(name).values.items()
        for file in ([key] if "/figures/" in key else value if key.endswith("/figures") else ())
    ]
    assert {Path(file).stem for file in files} | set(drawn) >= {name for named in FIGURES.values() for name in named}


def test_what_was_not_solved_is_not_drawn(tmp_path):
    alone = solved(tmp_path, "partition", steps=1)
    assert draw_figure("solve", "solve_greedy_gap", alone) is None


def test_a_spoiled_file_is_named(tmp_path):
    run = solved(tmp_path, "static", "partition")
    (run.path / "greedy_gaps.csv").write_bytes(b"\x00\xff")
    with pytest.raises(RecordError, match=r"greedy_gaps\.csv"):
        draw_figure("solve", "solve_greedy_gap", run)


def test_it_is_drawn_only_where_there_is_something_to_hold_against_each_other(view, make_run: Make) -> None:
    alone = view("static")
    unknown = ArmView("short", (merge_run(make_run(steps_written=5, status="interrupted")),))
    for arms in (alone, [*alone, unknown], [unknown, *alone]):
        assert draw_figure("train", "waterfall", arms) is None

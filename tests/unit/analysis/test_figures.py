"""Figures: their numbers, captions and legends."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
import pytest
from golden.accepted import read_accepted
from golden.layout import WATCHED, looked_at
from matplotlib.image import imread
from unit.analysis.conftest import Make

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
def view(merged):
    return lambda *policies, **fields: [ArmView(policy, (merged(policy, **fields),)) for policy in policies]


def test_one_module_chooses_a_backend_and_nothing_uses_pyplot():
    for path in Path(charts.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert not re.search(r"(?m)^\s*(from|import)\b.*pyplot", source), path.name
        assert ("matplotlib.use" in source) == (path.name == "charts.py")
    assert matplotlib.get_backend().lower() == "agg"


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_figure_is_a_picture_with_its_numbers(view, tmp_path):
    files = draw_figures("train", view("static") + view("partition", world_size=4), tmp_path)
    assert len(files) >= 14 and [path.suffix for path in files] == [".png", ".csv"] * (len(files) // 2)
    for path in files[::2]:
        image = imread(path)
        assert image.shape[1] >= 800 and image[..., :3].std() > 0.05
        assert set(pl.read_csv(path.with_suffix(".csv"))["arm"]) == {"static", "partition"}


@pytest.mark.slow
def test_many_ranks_are_judged_by_all_of_them_and_the_slowest_is_among_those_shown(view):
    arms = view("static", "partition", world_size=60, global_batch=120, steps=12, noise=0.0)
    drawing = timeline.timeline(arms)
    texts = " ".join(" ".join(text.get_text().split()) for text in drawing.figure.texts)
    assert "All arms compute the same samples." in texts
    for arm, axes in zip(arms, drawing.figure.axes, strict=True):
        rows, shown = arm.runs[0].rank_rows(typical_step(arms)), drawing.table.filter(arm=arm.label)
        assert shown.height < rows.height and shown["compute_ms"].max() == rows["compute_ms"].max()
        waiting = rows["wait_ms"].mean() / rows["step_time_max_ms"][0]
        assert f"{100 * waiting:.0f} % of the ranks' time is waiting" in axes.get_title()


def test_few_series_have_colours_and_of_many_only_the_important_ones():
    few = looks([*"0123456"])
    assert len({look.color for look in few.values()}) == len({look.marker for look in few.values()}) == 7
    many = looks([*map(str, range(20))], [*"059"])
    coloured = {name: look.color for name, look in many.items() if look.color != GREY}
    assert [*coloured] == [*"059"] and len({*coloured.values()}) == 3


def test_nothing_is_drawn_where_there_is_nothing_to_tell(view, make_run: Make) -> None:
    """Of runs that do not compress, or have nothing to be held against."""
    compression = [name for name in FIGURES["train"] if name.startswith("compression")]
    alone, short = view("static"), merge_run(make_run(steps_written=5, status="interrupted"))
    unknown = ArmView("short", (short,))
    empty = [*product(compression, ([], alone)), *product(["waterfall"], (alone, [*alone, unknown], [unknown, *alone]))]
    assert compression and {draw_figure("train", *each) for each in empty} == {None}


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
        for file in ([key] if "/" in key else value)  # a benchmark's files stand together
    ]
    assert {Path(file).stem for file in files} | set(drawn) >= {name for named in FIGURES.values() for name in named}


def test_what_was_not_solved_is_not_drawn_and_a_spoiled_file_is_named(tmp_path):
    run = solved(tmp_path, "partition", steps=1)
    assert draw_figure("solve", "solve_greedy_gap", run) is None
    (run.path / "greedy_gaps.csv").write_bytes(b"\x00\xff")
    with pytest.raises(RecordError, match=r"greedy_gaps\.csv"):
        draw_figure("solve", "solve_greedy_gap", run)

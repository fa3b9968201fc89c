from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.figures import FIGURES, draw_figure, style
from dynbench.analysis.figures.plans import solve_lines
from dynbench.config.layers import load_config
from dynbench.errors import RecordError
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace

LENGTHS = np.clip(np.random.default_rng(3).lognormal(3, 1, 500).astype(np.int64), 2, 300)
POLICIES = ("static", "partition", "prefix", "window")


def solved(
    folder: Path, policies: tuple[str, ...] = ("static", "partition", "prefix", "window"), steps: int = 8
) -> Run:
    options = SolveOptions([Trace("made", LENGTHS, "here")], (2, 4), policies, windows=(2, 4), steps=steps)
    return run_solve(load_config(), options, RunStore(folder)).run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return solved(tmp_path_factory.mktemp("results"))


def results(run: Run) -> list[dict]:
    return json.loads((run.path / "results.json").read_text())["results"]


def drawn(name: str, run: Run) -> style.Drawing | None:
    return draw_figure("solve", name, run)


def test_lines_are_labelled_with_their_window(run):
    table = solve_lines(run)
    assert table["label"].unique(maintain_order=True).to_list() == [
        "static", "partition", "prefix", "window W=2", "window W=4"
    ]  # fmt: skip
    assert len(table) == len(results(run)) == 10


def test_speedup_is_drawn_below_the_bound(run):
    table = drawn("solve_speedup", run).table
    dealt = table.filter(pl.col("label").is_in(["static", "partition"]))
    assert (dealt["speedup_vs_static"] <= dealt["bound_speedup"] + 1e-9).all()
    static = table.filter(label="static", world_size=4)["bound_speedup"].item()
    line = next(r for r in results(run) if r["policy"] == "static" and r["world_size"] == 4)
    assert static == pytest.approx(line["mean_max_cost"] / line["mean_bound"])


def test_the_gap_of_greedy_is_drawn_at_zero(run):
    table = drawn("solve_greedy_gap", run).table
    greedy = table.filter(heuristic="greedy")
    assert len(greedy) == 2 * 8
    assert greedy["max_cost_gap"].max() == 0
    assert table.filter(heuristic="equal_counts")["max_cost_gap"].max() > 0


def test_what_was_not_solved_is_not_drawn(tmp_path):
    alone = solved(tmp_path, ("partition",), steps=1)
    assert drawn("solve_greedy_gap", alone) is None


@pytest.mark.parametrize("name", ["results.json", "greedy_gaps.csv"])
def test_a_spoiled_file_is_named(tmp_path, name):
    run = solved(tmp_path)
    (run.path / name).write_bytes(b"\x00\xff")
    with pytest.raises(RecordError, match=name):
        for name in FIGURES["solve"]:
            drawn(name, run)

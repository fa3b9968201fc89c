from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynbench.analysis.figures import charts, draw_figure
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


def drawn(name: str, run: Run) -> charts.Drawing | None:
    return draw_figure("solve", name, run)


def test_the_gap_of_greedy_is_drawn_at_zero(run):
    table = drawn("solve_greedy_gap", run).table
    greedy = table.filter(heuristic="greedy")
    assert len(greedy) == 2 * 8
    assert greedy["max_cost_gap"].max() == 0
    assert table.filter(heuristic="equal_counts")["max_cost_gap"].max() > 0


def test_what_was_not_solved_is_not_drawn(tmp_path):
    alone = solved(tmp_path, ("partition",), steps=1)
    assert drawn("solve_greedy_gap", alone) is None


def test_a_spoiled_file_is_named(tmp_path):
    run = solved(tmp_path)
    (run.path / "greedy_gaps.csv").write_bytes(b"\x00\xff")
    with pytest.raises(RecordError, match=r"greedy_gaps\.csv"):
        drawn("solve_greedy_gap", run)

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.figures import FIGURES, draw_figure, style
from dynbench.analysis.figures.solve_policies import line_look, solve_lines
from dynbench.config.load import load_config
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


def test_looks_of_many_policies_stay_apart():
    looks = [tuple(line_look(index).values()) for index in range(21)]
    assert len(set(looks)) == len(looks)


def test_speedup_is_drawn_below_the_bound(run):
    table = drawn("solve_speedup", run).table
    dealt = table.filter(pl.col("label").is_in(["static", "partition"]))
    assert (dealt["speedup_vs_static"] <= dealt["bound_speedup"] + 1e-9).all()
    static = table.filter(label="static", world_size=4)["bound_speedup"].item()
    line = next(r for r in results(run) if r["policy"] == "static" and r["world_size"] == 4)
    assert static == pytest.approx(line["mean_max_cost"] / line["mean_bound"])


def test_rank_costs_are_those_of_the_first_step(run):
    table = drawn("solve_rank_costs", run).table
    assert set(table["label"]) == {"static", "partition"}
    assert set(table["world_size"]) == {2}
    dealt = table.group_by("label").agg(pl.col("samples").sum(), pl.col("cost").max())
    assert set(dealt["samples"]) == {16}
    assert dealt.filter(label="partition")["cost"].item() < dealt.filter(label="static")["cost"].item()


def test_the_gap_of_greedy_is_drawn_at_zero(run):
    table = drawn("solve_greedy_gap", run).table
    greedy = table.filter(heuristic="greedy")
    assert len(greedy) == 2 * 8
    assert greedy["max_cost_gap"].max() == 0
    assert table.filter(heuristic="equal_counts")["max_cost_gap"].max() > 0


def test_the_others_show_their_column(run):
    lines = results(run)
    assert drawn("solve_padding", run).table["padding_ratio"].to_list() == [r["padding_ratio"] for r in lines]
    assert drawn("solve_batch_size", run).table["samples_max"].to_list() == [r["local_batch"]["max"] for r in lines]
    assert drawn("solve_correlation", run).table["step_length_spread"].to_list() == [
        r["step_length_spread"] for r in lines
    ]


def test_what_was_not_solved_is_not_drawn(tmp_path):
    alone = solved(tmp_path, ("partition",), steps=1)
    assert drawn("solve_rank_costs", alone) is None
    assert drawn("solve_greedy_gap", alone) is None
    assert drawn("solve_correlation", alone) is None
    assert drawn("solve_padding", alone) is not None


@pytest.mark.parametrize("name", ["results.json", "rank_costs.csv", "greedy_gaps.csv"])
def test_a_spoiled_file_is_named(tmp_path, name):
    run = solved(tmp_path)
    (run.path / name).write_bytes(b"\x00\xff")
    with pytest.raises(RecordError, match=name):
        for name in FIGURES["solve"]:
            drawn(name, run)

"""What a run's evaluations and epochs came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.analysis.conftest import Fake, build_run

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.config.schema import changed, dump_config
from dynbench.runs.records import CORRECT, Column, write_columns
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]
REACHED = {9: 90.0, 19: 40.0, 29: 18.0, 39: 20.0, 49: 12.0}
"""Perplexities by step: the run comes below 20 and leaves it again."""


def evaluated(run: Run) -> Run:
    lines = [f"{step},1.0,{perplexity},100,10\n" for step, perplexity in REACHED.items()]
    (run.path / "eval.csv").write_text("step,loss,perplexity,tokens,samples\n" + "".join(lines))
    return run


def targets(make_run: Make, *asked: str, **changes: Any) -> dict[str, Any]:
    run = evaluated(make_run("static", overrides=asked, extra={"bytes_wire": 10}, noise=0.0, **changes))
    found = summary_of(merge_run(run))["targets"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("asked", "steps"), [(40.0, 20), (39.9, 30), (18.0, 30), (12.0, 50), (11.9, None)])
def test_a_target_is_reached_with_the_first_evaluation_at_or_below_it(
    make_run: Make, asked: float, steps: int | None
) -> None:
    found = targets(make_run, f"analysis.target_perplexity={asked}")
    assert (found["steps_to_target"], found["bytes_to_target"]) == (steps, None if steps is None else 10 * steps)
    if steps is None:
        assert found["time_to_target_s"] is None
        return
    run = evaluated(make_run("static", noise=0.0, overrides=(f"analysis.target_perplexity={asked}",)))
    spent = merge_run(run).steps["step_time_max_ms"][:steps].sum() / 1000
    assert found["time_to_target_s"] == pytest.approx(spent), "warm-up among it, evaluation not"


def test_at_a_time_stands_the_last_evaluation_within_it(make_run: Make) -> None:
    run = evaluated(make_run("static", noise=0.0))
    clock = merge_run(run).steps["step_time_max_ms"].cum_sum() / 1000
    for seconds, perplexity in ((clock[19] + 1e-6, 40.0), (clock[28], 40.0), (clock[0], None), (clock[49] + 9, None)):
        found = targets(make_run, f"analysis.time_budget_s={seconds!r}")
        assert (found["perplexity_at_budget"], found["target_perplexity"]) == (perplexity, None), seconds


def test_a_run_of_which_steps_are_missing_knows_no_time(make_run: Make) -> None:
    found = targets(make_run, "analysis.target_perplexity=12.0", steps_written=45, status="failed")
    assert found["time_to_target_s"] is None


PULL = Column("pull_ms", "number", "ms", "Of a server.")
SIZE = {"steps": 38, "warmup_steps": 10}
"""48 steps, 16 in each of 3 epochs."""


def in_epochs(store: RunStore, fake: Fake) -> Run:
    """A run that was asked for in 3 epochs."""
    run = build_run(store, fake)
    run.config_file.write_text(dump_config(changed(run.config(), {"train.epochs": 3})), encoding="utf-8")
    return run


@pytest.fixture
def found(store: RunStore):
    """Three epochs of a made-up run, its first two evaluated, and its rows."""
    run = in_epochs(store, Fake(**SIZE, extra={"correct": 2, "pull_ms": 1.5}))
    write_columns(run.ranks_dir, [CORRECT, PULL])
    each = run.config().train.epoch_steps
    rows = [f"{number * each - 1},{0.5 / number},{0.6 + 0.1 * (number % 2)},64" for number in (1, 2)]
    (run.path / "eval.csv").write_text("\n".join(["step,loss,accuracy,samples", *rows]) + "\n")
    merged = merge_run(run)
    return summary_of(merged)["epochs"], merged, each


def test_every_epoch_is_that_of_its_rows(found) -> None:
    epochs, merged, each = found
    rows = merged.worker_rows().collect()
    assert [one["epoch"] for one in epochs["each"]] == [1, 2, 3]
    for one in epochs["each"]:
        mine = rows.filter(rows["step"] // each == one["epoch"] - 1)
        samples, weight = mine["local_batch"].sum(), mine["weight"].sum()
        times = [part["step_time_ms"].max() for _, part in mine.group_by("step")]
        assert one["steps"] == len(times) == each
        assert one["samples"] == samples
        assert one["train_loss"] == pytest.approx((mine["loss"] * mine["weight"]).sum() / weight)
        assert one["train_accuracy"] == pytest.approx(2 * len(mine) / samples)
        assert one["train_s"] == pytest.approx(sum(times) / 1e3, rel=1e-5)
        assert one["samples_per_s"] == pytest.approx(samples / one["train_s"], rel=1e-5)
        assert one["step_ms"] == pytest.approx(sum(times) / each, rel=1e-5)
        assert (one["comm_ms"], one["server_comm_ms"]) == ({"pull_ms": pytest.approx(1.5)}, {})


def test_what_servers_send_is_told_apart_from_what_workers_do(store: RunStore) -> None:
    run = in_epochs(store, Fake("partition", **SIZE, servers=2, extra={"correct": 2, "pull_ms": 1.5}))
    write_columns(run.ranks_dir, [CORRECT, PULL])
    for server in (0, 1):
        file = run.rank_file(server)
        file.write_text(file.read_text().replace(",2,1.5", ",0,9.5"))
    for one in summary_of(merge_run(run))["epochs"]["each"]:
        assert (one["comm_ms"]["pull_ms"], one["server_comm_ms"]["pull_ms"]) == (pytest.approx(1.5), pytest.approx(9.5))
        assert one["samples"] == 16 * 16, "servers train nothing"

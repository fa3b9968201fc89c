"""Ranks that train nothing, in the loop of a real rank.

Three processes, started once, are the ranks; where every one has to train, the two of the session are.
"""

from __future__ import annotations

import polars as pl
import pytest
from strategy_jobs import STEPS, named, train_run
from warm import WarmRanks

from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.engine.rank.rank_facts import merge_facts
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Run

pytestmark = pytest.mark.multiproc

SERVER_MS, WORKER_MS = ("receive_ms", "average_ms", "send_ms"), ("push_ms", "pull_ms")


@pytest.fixture
def train(new_run):
    """Trains on warm ranks and merges what they wrote."""

    def run_on(warm: WarmRanks, ranks: int, sync: str, *settings: str) -> MergedRun:
        run, config = new_run(f"launch.nproc={ranks}", *settings)
        warm(train_run, str(run.path), named(config, sync))
        merge_facts(run)
        return merge_run(Run(run.path))

    return run_on


@pytest.mark.parametrize("sync", ["ps", "ps_flat"])
def test_a_server_takes_part_and_counts_for_nothing(three: WarmRanks, ranks: WarmRanks, train, sync: str) -> None:
    served, plain = train(three, 3, sync), train(ranks, 2, "one_by_one")
    rows = pl.read_parquet(served.run.path / "merged_metrics.parquet").sort("step", "rank")
    assert rows["rank"].to_list() == [0, 1, 2] * STEPS
    server, workers = rows.filter(rank=0), rows.filter(pl.col("rank") > 0)
    for column in ("local_batch", "micro_batches", "real_tokens", "padded_tokens", "weight", "compute_ms", "work_hash"):
        assert server[column].to_list() == [0] * STEPS, column
    assert server["wait_ms"].null_count() == STEPS
    assert workers["micro_batches"].to_list() == [1 + (step + rank) % 3 for step in range(STEPS) for rank in (0, 1)]
    assert workers["wait_ms"].null_count() == 0
    for column, of_step, ours in (("sync_ms", "min", "exposed_comm_ms"), ("step_time_ms", "max", "step_time_max_ms")):
        wanted = workers.group_by("step").agg(getattr(pl.col(column), of_step)()).sort("step")[column]
        assert served.steps[ours].to_list() == pytest.approx(wanted.to_list())

    assert (rows["messages"] > 0).all()
    for found, mine, others in ((server, SERVER_MS, WORKER_MS), (workers, WORKER_MS, SERVER_MS)):
        assert all((found[column] >= 0).all() and found[column].null_count() == 0 for column in mine)
        assert all(found[column].null_count() == found.height for column in others)
    assert (rows["peer_wait_ms"].null_count() == rows.height) == (sync == "ps_flat")

    assert (served.world_size, served.workers, served.missing_ranks) == (3, 2, ())
    for column in ("work_hash", "global_batch", "padded_tokens", "local_batch_std"):
        assert served.steps[column].to_list() == plain.steps[column].to_list(), column
    assert served.steps["loss_global"].to_list() == pytest.approx(plain.steps["loss_global"].to_list(), rel=1e-4)
    assert served.evaluations.select("step", "samples").rows() == [(1, 9), (3, 9)]
    assert served.evaluations["loss"].to_list() == pytest.approx(plain.evaluations["loss"].to_list(), rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        ("schedule.policy=prefix", "schedule.exchange=gather"),
        ("schedule.policy=partition", "schedule.speeds=auto", "schedule.replan_steps=1"),
    ],
)
def test_what_is_exchanged_for_plans_goes_past_the_server(three: WarmRanks, train, settings: tuple[str, ...]) -> None:
    served = train(three, 3, "ps", *settings)
    assert served.steps["global_batch"].to_list() == [12] * STEPS
    if "schedule.speeds=auto" in settings:
        speeds = pl.read_csv(served.run.path / "speeds.csv")
        assert speeds["rank"].unique().sort().to_list() == [0, 1]


def test_no_strategy_with_servers_is_for_virtual_ranks() -> None:
    assert not [entry.name for entry in STRATEGIES.values() if entry.servers and entry.virtual]


IMAGES = ("workload.name=image_classification", "workload.size=small", "workload.subset=48")


@pytest.mark.parametrize("sync", ["ps", "ps_flat"])
def test_a_server_evaluates_with_the_batch_norm_of_its_workers(
    three: WarmRanks, ranks: WarmRanks, train, sync: str
) -> None:
    """It runs no forward pass in training: with its own statistics it would find other losses."""
    served, plain = train(three, 3, sync, *IMAGES), train(ranks, 2, "ddp", *IMAGES)
    assert served.evaluations["loss"].to_list() == pytest.approx(plain.evaluations["loss"].to_list(), rel=1e-3)
    assert served.evaluations["accuracy"].to_list() == plain.evaluations["accuracy"].to_list()

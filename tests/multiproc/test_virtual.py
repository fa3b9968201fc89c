"""One process that plays two ranks trains as two processes do."""

from __future__ import annotations

import polars as pl
import pytest
from multiproc.launches import Launch, global_loss, rows_of

from dynbench.analysis.merge import merge_run

pytestmark = pytest.mark.multiproc

VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2", "launch.nproc=auto")
LONGER = ("workload.dropout=0.1", "train.steps=24", "schedule.mode=dynamic")


def test_virtual_ranks_agree_with_real_ones(launch: Launch) -> None:
    real, virtual = launch(*LONGER), launch(*LONGER, *VIRTUAL)
    assert global_loss(virtual) == pytest.approx(global_loss(real), rel=1e-4)
    columns = ("step", "rank", "local_batch", "padded_tokens", "work_hash")
    assert rows_of(virtual).select(columns).rows() == rows_of(real).select(columns).rows()


def test_step_is_the_slowest_rank_plus_the_model(launch: Launch) -> None:
    run = launch(*VIRTUAL, "launch.comm_model='5,0'", "launch.slowdown={1: 3}")
    rows = rows_of(run)
    for step in range(8):
        both = rows.filter(rows["step"] == step)
        assert both["step_time_ms"].n_unique() == 1
        assert both["sync_ms"].min() == pytest.approx(5)
        busy = both["data_ms"] + both["compute_ms"]
        total = both["plan_ms"] + busy + both["sync_ms"] + both["optimizer_ms"]
        assert total.to_list() == pytest.approx(both["step_time_ms"].to_list())
    assert run.env()["decisions"]["launch.comm_model"]["value"].startswith("5 ms")


@pytest.mark.alone
def test_a_slowed_rank_makes_the_other_wait(launch: Launch) -> None:
    rows = rows_of(launch("schedule.mode=static", "launch.slowdown={1: 3}"))
    slowed, other = (rows.filter(rows["rank"] == rank) for rank in (1, 0))
    assert slowed["compute_ms"].sum() > 1.5 * other["compute_ms"].sum()
    assert other["sync_ms"].sum() > slowed["sync_ms"].sum()
    run = launch("schedule.mode=static", "launch.slowdown={1: 3}")
    merge_run(run)
    told = pl.read_parquet(run.path / "merged_metrics.parquet")
    waits = [told.filter(rank=rank)["comm_wait_ms"].sum() for rank in (1, 0)]
    transfers = [told.filter(rank=rank)["comm_transfer_ms"].sum() for rank in (1, 0)]
    assert waits[1] > 3 * waits[0], "the planted wait is the other rank's"
    assert waits[1] > 0.5 * (slowed["compute_ms"].sum() - other["compute_ms"].sum())
    assert transfers[0] == pytest.approx(transfers[1], rel=0.5), "what is transferred is transferred by both"

"""What a tiny run leaves behind: on real ranks and on virtual ones, under several policies, capacities and speeds."""

from __future__ import annotations

import csv
import json

import numpy as np
import polars as pl
import pytest
from multiproc.launches import Launch, global_loss, rows_of, work_hashes

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.runs.records import COLUMNS, COMM_COLUMNS, TURN, read_columns
from dynbench.runs.run import Run, Status

pytestmark = pytest.mark.multiproc

STEPS, WARMUP, RANKS, BATCH = 8, 2, 2, 12


def test_rows_of_every_rank_and_step(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert rows.select("step", "rank").rows() == [(step, rank) for step in range(STEPS) for rank in range(RANKS)]
    assert tuple(rows.columns) == (*COLUMNS, *(column.name for column in (TURN, *COMM_COLUMNS)))
    assert tuple(read_columns(static_run.ranks_dir).values()) == (TURN, *COMM_COLUMNS)
    assert rows.filter(warmup=1)["step"].unique().sort().to_list() == list(range(WARMUP))
    assert (rows["padded_tokens"] == rows["local_batch"] * rows["max_seq_len_in_batch"]).all()
    assert (rows["real_tokens"] <= rows["padded_tokens"]).all()
    assert (rows["peak_mem_mb"] > 50).all() and (rows["reserved_mem_mb"] > 50).all()


def test_bytes_and_times_of_rows(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert rows["bytes_raw"].n_unique() == 1
    assert (rows["bytes_wire"] == rows["bytes_raw"]).all(), "a ring of two"
    assert (rows["gradient_bytes_raw"] == rows["gradient_bytes_wire"]).all(), "as they are"
    assert rows["gradient_bytes_raw"].min() > 0.99 * rows["bytes_wire"].max()
    assert (rows["comm_ms"] > 0).all()
    assert np.allclose(rows["forward_ms"] + rows["backward_ms"], rows["compute_ms"])
    phases = rows.select("plan_ms", "data_ms", "compute_ms", "sync_ms", "optimizer_ms").sum_horizontal()
    assert (phases <= rows["step_time_ms"] + 1e-6).all()
    assert all((rows[name] >= 0).all() for name in rows.columns if name.endswith("_ms"))


def test_record_facts_and_logs(static_run: Run) -> None:
    assert static_run.status is Status.COMPLETED
    assert static_run.record().exit_code == 0
    env = static_run.env()
    assert [device["rank"] for device in env["devices"]["ranks"]] == [0, 1]
    assert env["data"]["fingerprint"] and env["data"]["lengths"]["samples"] == 96
    assert env["decisions"]["measured.torch_threads"]["value"] == 1
    assert "resident" in env["decisions"]["measured.peak_mem_mb"]["value"]
    assert sorted(path.name for path in static_run.logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_evaluation_is_over_all_ranks(static_run: Run) -> None:
    with (static_run.path / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["samples"]) for row in rows] == [("7", "16")]
    assert 0 <= float(rows[0]["accuracy"]) <= 1 and float(rows[0]["loss"]) > 0


def test_partition_does_statics_work_with_less_padding(static_run: Run, partition_run: Run) -> None:
    rows = rows_of(partition_run)
    assert set(rows.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]) == {BATCH}
    assert work_hashes(partition_run) == work_hashes(static_run)
    assert global_loss(partition_run) == pytest.approx(global_loss(static_run), rel=1e-4)
    assert rows["padded_tokens"].sum() < rows_of(static_run)["padded_tokens"].sum()


def test_micro_batches_change_nothing_but_padding(launch: Launch, static_run: Run) -> None:
    run = launch("schedule.mode=static", "schedule.micro_batches=3")
    assert set(rows_of(run)["micro_batches"]) == {3}
    assert work_hashes(run) == work_hashes(static_run)
    assert global_loss(run) == pytest.approx(global_loss(static_run), rel=1e-4)


def test_gathered_plans_are_the_replicated_ones(launch: Launch) -> None:
    prefix = ("schedule.mode=dynamic", "schedule.policy=prefix", "schedule.capacity=[8, 9]")
    gathered, replicated = launch(*prefix, "schedule.exchange=gather"), launch(*prefix)
    columns = ("step", "rank", "local_batch", "padded_tokens", "work_hash")
    assert rows_of(gathered).select(columns).rows() == rows_of(replicated).select(columns).rows()
    assert rows_of(replicated)["local_batch"].n_unique() > 1


def test_a_capacity_that_binds_is_never_exceeded(launch: Launch, partition_run: Run) -> None:
    limit = rows_of(partition_run)["local_batch"].max() - 1
    bound = rows_of(launch("schedule.mode=dynamic", f"schedule.capacity={limit}"))
    assert bound["local_batch"].max() == limit
    assert bound["micro_batches"].max() == 1


def test_a_batch_that_does_not_fit_is_split_where_asked_for(launch: Launch) -> None:
    rows = rows_of(launch("schedule.mode=dynamic", "schedule.capacity=4", "schedule.micro_batches=auto"))
    assert (rows["micro_batches"] >= 2).any()
    assert (rows["local_batch"] <= 4 * rows["micro_batches"]).all()
    steps = rows.group_by("step").agg(pl.col("local_batch").sum())
    assert steps["local_batch"].unique().to_list() == [BATCH]


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
    run = launch("schedule.mode=static", "launch.slowdown={1: 3}")
    rows = rows_of(run)
    slowed, other = (rows.filter(rows["rank"] == rank) for rank in (1, 0))
    assert slowed["compute_ms"].sum() > 1.5 * other["compute_ms"].sum()
    assert other["sync_ms"].sum() > slowed["sync_ms"].sum()
    merge_run(run)
    merged = pl.read_parquet(run.path / "merged_metrics.parquet")
    waits = [merged.filter(rank=rank)["comm_wait_ms"].sum() for rank in (1, 0)]
    transfers = [merged.filter(rank=rank)["comm_transfer_ms"].sum() for rank in (1, 0)]
    assert waits[1] > 3 * waits[0], "the planted wait is the other rank's"
    assert waits[1] > 0.5 * (slowed["compute_ms"].sum() - other["compute_ms"].sum())
    assert transfers[0] == pytest.approx(transfers[1], rel=0.5), "what is transferred is transferred by both"


SLOWDOWN = np.array([1.0, 1.0, 1.0, 2.0])
SLOWED = (
    "launch.launcher=virtual",
    "launch.world_size=4",
    "launch.nproc=auto",
    "launch.slowdown={3: 2.0}",
    "workload.subset=1024",
    "workload.max_length=32",
    "train.global_batch=64",
    "train.eval_samples=0",
    "schedule.mode=dynamic",
    "schedule.micro_batches=4",
)


def column(run: Run, name: str) -> np.ndarray:
    """A column of the measured steps, shape [steps, G]."""
    rows = rows_of(run).filter(pl.col("warmup") == 0)
    return rows[name].to_numpy().reshape(-1, rows["rank"].n_unique()).astype(np.float64)


def test_with_known_speeds_the_planned_step_is_within_a_tenth_of_the_bound(launch: Launch) -> None:
    run = launch(*SLOWED, "schedule.speeds=[1.0, 1.0, 1.0, 0.5]", "train.steps=20")
    slowest = (column(run, "padded_tokens") * SLOWDOWN).max(axis=1)
    bound = column(run, "real_tokens").sum(axis=1) / (1 / SLOWDOWN).sum()
    assert slowest.sum() < 1.1 * bound.sum()


@pytest.mark.alone
def test_estimated_speeds_give_the_slow_rank_less_after_fifty_steps(launch: Launch) -> None:
    """Judged in planned work, with room for noisy estimates: equal shares would be 1.75 times the bound."""
    run = launch(*SLOWED, "schedule.speeds=auto", "train.warmup_steps=50", "train.steps=15")
    slowest = (column(run, "padded_tokens") * SLOWDOWN).max(axis=1)
    bound = column(run, "real_tokens").sum(axis=1) / (1 / SLOWDOWN).sum()
    assert slowest.sum() < 1.4 * bound.sum()
    estimates = pl.read_csv(run.path / "speeds.csv")
    assert estimates["step"].unique().sort().to_list() == [10, 20, 30, 40, 50, 60]
    assert estimates.filter(rank=3)["speed"].median() < 0.8


@pytest.mark.alone
def test_real_ranks_derive_the_same_speeds(launch: Launch) -> None:
    run = launch("schedule.mode=dynamic", "schedule.speeds=auto", "schedule.replan_steps=4", "launch.slowdown={1: 4.0}")
    tokens = column(run, "padded_tokens")[-2:].sum(axis=0)
    assert tokens[0] > 1.5 * tokens[1]
    assert pl.read_csv(run.path / "speeds.csv").filter(rank=1)["speed"].max() < 0.7


@pytest.mark.alone
def test_the_profiler_and_the_wire_agree_on_what_communication_takes(launch: Launch) -> None:
    """One all-reduce of all gradients behind the backward pass."""
    run = launch("sync.name=flat", "train.warmup_steps=4", "train.profile_steps=2", "train.steps=2")
    for rank in range(2):
        trace = json.loads((run.profiler_dir / f"rank_{rank}.pt.trace.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"dynbench::step", "dynbench::forward", "dynbench::backward", "dynbench::all_reduce"} <= names
    merged = merge_run(run)
    assert merged.measured["step"].to_list() == [4, 5]
    profile = summary_of(merged)["profile"]
    assert isinstance(profile, dict) and (profile["first_step"], profile["steps"], profile["ranks"]) == (2, 2, 2)
    rows = {(row["phase"], row["operation"]): row for row in profile["rows"]}
    assert rows["backward", "all_reduce"]["calls"] == 1
    in_phase = {phase: rows.get((phase, "all_reduce"), {"ms": 0.0})["ms"] for phase in ("forward", "backward")}
    assert rows["forward", "compute"]["share"] > 0.01
    # A thread of gloo's ends a call in the profile after those that wait for it go on, seldom by more than a moment.
    assert in_phase["forward"] < 0.1 * in_phase["backward"]
    assert profile["comm_share"] == pytest.approx(profile["wire_comm_share"], rel=0.3), "measured twice"

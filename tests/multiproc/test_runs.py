"""What a tiny run leaves behind: on real ranks and on virtual ones, under several policies, capacities and speeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from multiproc.launches import TINY, VIRTUAL, Launch, global_loss, rows_of, work_hashes
from sampled import sampled

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.config.layers import load_config
from dynbench.engine.planning import build_problem
from dynbench.plugins import STRATEGIES
from dynbench.runs.records import COLUMNS, COMM_COLUMNS, TURN
from dynbench.runs.run import Run, Status
from dynbench.schedule.policy import Planner

pytestmark = pytest.mark.multiproc

STEPS, WARMUP, RANKS, BATCH = 8, 2, 2, 12


def test_rows_of_every_rank_and_step(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert rows.select("step", "rank").rows() == [(step, rank) for step in range(STEPS) for rank in range(RANKS)]
    assert tuple(rows.columns) == (*COLUMNS, *(column.name for column in (TURN, *COMM_COLUMNS)))
    assert rows.filter(warmup=1)["step"].unique().sort().to_list() == list(range(WARMUP))
    assert (rows["padded_tokens"] == rows["local_batch"] * rows["max_seq_len_in_batch"]).all()
    assert (rows["real_tokens"] <= rows["padded_tokens"]).all()
    assert min(rows["peak_mem_mb"].min(), rows["reserved_mem_mb"].min()) > 50
    assert (rows["bytes_wire"] == rows["bytes_raw"]).all(), "a ring of two"
    assert rows["gradient_bytes_raw"].min() > 0.99 * rows["bytes_wire"].max()
    assert (rows["comm_ms"] > 0).all()
    assert np.allclose(rows["forward_ms"] + rows["backward_ms"], rows["compute_ms"])
    phases = rows.select("plan_ms", "data_ms", "compute_ms", "sync_ms", "optimizer_ms").sum_horizontal()
    assert (phases <= rows["step_time_ms"] + 1e-6).all()
    assert all((rows[name] >= 0).all() for name in rows.columns if name.endswith("_ms"))


def test_record_facts_and_logs(static_run: Run) -> None:
    env = static_run.env()
    assert (static_run.status, static_run.record().exit_code) == (Status.COMPLETED, 0)
    assert [device["rank"] for device in env["devices"]["ranks"]] == [0, 1]
    assert env["data"]["fingerprint"] and env["data"]["lengths"]["samples"] == 96
    assert env["decisions"]["measured.torch_threads"]["value"] == 1
    assert sorted(path.name for path in static_run.logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_partition_does_statics_work_with_less_padding(launch: Launch, static_run: Run) -> None:
    run = launch("schedule.mode=dynamic")
    rows = rows_of(run)
    assert set(rows.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]) == {BATCH}
    assert work_hashes(run) == work_hashes(static_run)
    assert global_loss(run) == pytest.approx(global_loss(static_run), rel=1e-4)
    assert rows["padded_tokens"].sum() < rows_of(static_run)["padded_tokens"].sum()


def test_gathered_plans_are_the_replicated_ones_of_both_columns(launch: Launch, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lengths, patches = rng.integers(2, 60, 60), rng.choice([0, 0, 30, 200], 60)
    pl.DataFrame({"length": lengths, "patches": patches}).write_csv(tmp_path / "two.csv")
    data = ("dataset=lengths", f"data_path={tmp_path / 'two.csv'}", "second_column=patches", "subset=null")
    schedule = ("mode=dynamic", "policy=prefix", "second_weight=0.5")
    wanted = (*(f"workload.{each}" for each in data), *(f"schedule.{each}" for each in schedule))
    gathered, replicated = rows_of(launch(*wanted, "schedule.exchange=gather")), rows_of(launch(*wanted))
    columns = ("step", "rank", "local_batch", "padded_tokens", "work_hash")
    assert gathered.select(columns).rows() == replicated.select(columns).rows()
    problem = build_problem(load_config(None, [*TINY, *wanted]), lengths, RANKS, 1, second=patches)
    knows, blind = (
        [count for step in range(STEPS) for count in Planner("prefix", each).plan(step).local_batches]
        for each in (problem, replace(problem, second=None))
    )
    assert gathered["local_batch"].to_list() == knows != blind


PACKED = ("schedule.mode=dynamic", "workload.layout=packed", "train.precision=fp32")
IN_MAKE_TEST = ("ps_flat", "diloco")
"""Those that do what one process does are held against a reference in `make test`, too."""


@pytest.mark.parametrize("sync", sampled(STRATEGIES, IN_MAKE_TEST))
def test_it_trains_under_every_strategy(launch: Launch, sync: str) -> None:
    entry = STRATEGIES[sync]
    meets = ("sync.inner_steps=2",) if entry.reads("inner_steps") else ()
    run = launch(*PACKED, f"sync.name={sync}", f"launch.nproc={RANKS + entry.servers}", *meets)
    assert run.status is Status.COMPLETED
    working = rows_of(run).filter(pl.col("rank") >= entry.servers)
    assert working.height == STEPS * RANKS and working["loss"].is_finite().all()
    assert set(working["layout"]) == {"packed"} and (working["padded_tokens"] == working["real_tokens"]).all()
    assert set(working.group_by("step").agg(pl.col("local_batch").sum())["local_batch"]) == {BATCH}
    assert (run.path / "eval.csv").exists() == entry.trains
    if entry.exact:
        assert global_loss(run) == pytest.approx(global_loss(launch(*PACKED)), rel=1e-4), "as under ddp"


LONGER = ("workload.dropout=0.1", "train.steps=10", "schedule.mode=dynamic")


def test_virtual_ranks_do_what_real_ones_do_and_charge_the_model(launch: Launch) -> None:
    real, virtual = launch(*LONGER), launch(*LONGER, *VIRTUAL, "launch.comm_model='5,0'")
    assert global_loss(virtual) == pytest.approx(global_loss(real), rel=1e-4)
    columns, rows = ("step", "rank", "local_batch", "padded_tokens", "work_hash"), rows_of(virtual)
    assert rows.select(columns).rows() == rows_of(real).select(columns).rows()
    slowest = rows.group_by("step").agg(pl.col("sync_ms").min(), pl.col("step_time_ms").n_unique())
    assert slowest["sync_ms"].to_list() == pytest.approx([5.0] * slowest.height)
    assert slowest["step_time_ms"].to_list() == [1] * slowest.height
    assert virtual.env()["decisions"]["launch.comm_model"]["value"].startswith("5 ms")


@pytest.mark.alone
def test_a_slowed_rank_makes_the_other_wait(launch: Launch) -> None:
    run = launch("schedule.mode=static", "launch.slowdown={1: 3}")
    rows = rows_of(run)
    slowed, other = (rows.filter(rows["rank"] == rank) for rank in (1, 0))
    assert slowed["compute_ms"].sum() > 1.5 * other["compute_ms"].sum()
    merge_run(run)
    merged = pl.read_parquet(run.path / "merged_metrics.parquet")
    waits = [merged.filter(rank=rank)["comm_wait_ms"].sum() for rank in (1, 0)]
    transfers = [merged.filter(rank=rank)["comm_transfer_ms"].sum() for rank in (1, 0)]
    assert waits[1] > 3 * waits[0], "the planted wait is the other rank's"
    assert waits[1] > 0.5 * (slowed["compute_ms"].sum() - other["compute_ms"].sum())
    assert transfers[0] == pytest.approx(transfers[1], rel=0.5), "what is transferred is transferred by both"


@pytest.mark.alone
@pytest.mark.parametrize("more", [(), VIRTUAL], ids=["real", "virtual"])
def test_a_slow_rank_is_found_and_given_less(launch: Launch, more: tuple[str, ...]) -> None:
    speeds = ("schedule.speeds=auto", "schedule.replan_steps=4")
    run = launch("schedule.mode=dynamic", *speeds, "launch.slowdown={1: 4.0}", *more)
    rows = rows_of(run).filter(pl.col("step") >= STEPS - 2)
    first, slow = (rows.filter(rank=rank)["padded_tokens"].sum() for rank in range(RANKS))
    assert first > 1.5 * slow
    assert pl.read_csv(run.path / "speeds.csv").filter(rank=1)["speed"].max() < 0.7


@pytest.mark.alone
def test_the_profiler_and_the_wire_agree_on_what_communication_takes(launch: Launch) -> None:
    """One all-reduce of all gradients behind the backward pass."""
    run = launch("sync.name=flat", "train.warmup_steps=4", "train.profile_steps=2", "train.steps=2")
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

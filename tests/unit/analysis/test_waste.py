"""Where step time goes beyond the ideal, the ideal that arms share, and what a candidate recovers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from unit.analysis.conftest import Launch, Make, Merged

from dynbench.analysis.arms import Arm, named_arms
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.summary import summary_of
from dynbench.analysis.waste import PARTS, compute_rows, fit_compute, recovery, relative_speeds, share_ideal, waste_of
from dynbench.runs.records import StepRow
from dynbench.runs.run import Run

VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2")
SLOWED = {"slow": {1: 2.0}, "overrides": ("launch.slowdown={1: 2.0}",)}
SLOWER = {"policy": "partition", "compute_ms_per_token": 0.08}
"""Deals better than static, and computes each token in 1.6 times its time."""


def rewritten(run: Run, *without: str, **columns: pl.Expr) -> MergedRun:
    for path in run.ranks_dir.glob("rank_*.csv"):
        pl.read_csv(path).drop(without).with_columns(**columns).write_csv(path)
    return merge_run(run)


SQUARES = ("real_tokens2", "padded_tokens2")


def test_rows_of_an_earlier_version_have_an_ideal_only_where_nothing_is_padded(make_run: Make) -> None:
    old = rewritten(make_run(), *SQUARES)
    waste = waste_of(old)
    assert {waste[name] for name in ("s", *PARTS)} == {None}
    assert waste["reason_said"]["say"] == "waste.no_squares"
    assert fit_compute(compute_rows(old, np.ones(2))) is None

    packed = rewritten(make_run(), *SQUARES, padded_tokens=pl.col("real_tokens"))
    needed = packed.measured["compute_ms_mean"].sum() + packed.measured["optimizer_ms_mean"].sum()
    assert waste_of(packed)["s"] == pytest.approx(packed.time_ms / needed)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (lambda row: {"compute_ms": 50.0 - row.padded_tokens / 100}, "do not grow"),
        (lambda row: {"padded_tokens": 64, "real_tokens": 60}, "do not grow"),
        (lambda row: {"warmup": 1}, "no measured step"),
    ],
    ids=["shorter with more tokens", "equal tokens", "warm-up alone"],
)
def test_where_no_ideal_can_be_stated_the_reason_stands_there(merged: Merged, row: Any, reason: str) -> None:
    waste = summary_of(merged(row=row))["waste"]

    assert {waste[name] for name in ("s", *PARTS)} == {None}
    assert reason in waste["reason"]
    assert waste["reason_said"]["text"] == waste["reason"]


@pytest.fixture
def pair(merged: Merged):
    """`static` and `partition` without noise."""
    return lambda **fields: tuple(merged(policy, noise=0.0, **fields) for policy in ("static", "partition"))


@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
def test_the_bound_is_recomputed_from_the_formula(pair, attention_ms):
    """Of plans that keep the samples of a step, and of those that move them between steps."""
    static, partition = pair(world_size=4, attention_ms=attention_ms)
    steps = static.measured
    tokens, tokens2, longest = (steps[name].to_numpy() for name in ("real_tokens", "real_tokens2", "longest"))
    mean = 2.0 + (0.05 * tokens + attention_ms * tokens2) / 4
    least = np.maximum(mean, 2.0 + 0.05 * longest + attention_ms * longest**2)
    total = steps["step_time_max_ms"].to_numpy()
    other = partition.measured["step_time_max_ms"].sum()
    for level, compute in (("step", least), ("window", mean)):
        found = recovery([(static, partition)], level)
        bound = (total - steps["compute_ms_max"].to_numpy() + compute).sum()
        assert found.bound_speedup == pytest.approx(total.sum() / bound, rel=1e-3)
        assert found.share == pytest.approx((total.sum() - other) / (total.sum() - bound), rel=1e-2)
        assert 0.3 < found.share < 1 and found.within_steps == (level == "step")
        assert found.overhead_share == pytest.approx(2.0 / steps["compute_ms_max"].mean(), rel=1e-2)
    assert recovery([(static, partition)], "tokens") is None


@pytest.mark.parametrize(("workers", "batch"), [(2, 8), (2, 32), (4, 16), (8, 64)])
def test_no_deal_passes_the_bound_where_time_grows_with_the_square_of_the_length(pair, workers, batch):
    static, partition = pair(world_size=workers, global_batch=batch, attention_ms=0.002)
    for level in ("step", "window"):
        found = recovery([(static, partition)], level)
        assert static.time_ms / partition.time_ms <= found.bound_speedup
        assert found.share <= 1


def test_speeds_come_from_the_slowdown_then_the_schedule_then_the_estimates(merged):
    def speeds(*overrides, estimates=None):
        run = merged("partition", overrides=overrides)
        if estimates:
            (run.run.path / "speeds.csv").write_text(f"step,rank,speed\n{estimates}\n")
        return relative_speeds(plain, run).tolist()

    plain, scheduled = merged(), "schedule.speeds=[2.0, 1.0]"
    assert relative_speeds(plain).tolist() == [1, 1]
    assert speeds(scheduled) == [1, 0.5]
    assert speeds(scheduled, "launch.slowdown={0: 4.0}") == [0.25, 1]
    assert speeds("schedule.speeds=auto", estimates="10,0,1.0\n10,1,0.5\n20,0,1.0\n20,1,0.8") == [1, 0.8]


def test_a_bound_is_passed_by_no_more_than_its_fit_is_off(pair, monkeypatch):
    """The bound is that of the baseline, whoever passes it."""
    static, partition = pair()
    bound_speedup = recovery([(static, partition)]).bound_speedup
    for passes, stated in ((0.01, (bound_speedup, 1)), (0.04, (bound_speedup, 1)), (0.06, None)):
        factor = static.time_ms / bound_speedup / (1 + passes) / partition.time_ms
        blocks = partition.blocks.with_columns(time_ms=pl.col("time_ms") * factor)
        found = recovery([(static, replace(partition, blocks=blocks))])
        assert (found and (found.bound_speedup, found.share)) == (stated and pytest.approx(stated))
    monkeypatch.setattr("dynbench.analysis.waste.LEAST_LOSS", 0.99)
    assert recovery([(static, partition)]).share is None, "there is no loss"


def shared(launch: Launch, **of_arm: dict[str, object]) -> tuple[list[Arm], dict[str, dict[str, Any]]]:
    """The arms, and by id of the run the waste by the ideal that they share."""
    arms = named_arms(launch(2, **of_arm))
    summaries = {run.run.id: {"waste": waste_of(run)} for arm in arms for run in arm.runs}
    return arms, {run_id: summary["waste"] for run_id, summary in share_ideal(arms, summaries).items()}


def test_who_is_slower_is_further_from_the_ideal_by_as_much_and_its_compute_is_a_part(launch: Launch) -> None:
    (static, slower), wastes = shared(launch, static={}, slower=SLOWER)
    alone, fast = [waste_of(run)["s"] for run in slower.runs], [wastes[run.run.id]["s"] for run in static.runs]

    assert max(alone) < min(fast), "by its own ideal the slower arm is the better one"
    runs = (*static.runs, *slower.runs)
    ratios = [wastes[run.run.id]["s"] * run.measured["real_tokens"].sum() / run.time_ms for run in runs]
    assert ratios == pytest.approx([ratios[0]] * 4)
    for waste in wastes.values():
        assert sum(waste[part] for part in PARTS) == pytest.approx(1 - 1 / waste["s"])
    assert all(abs(wastes[run.run.id]["compute"]) < 0.01 for run in static.runs)
    assert all(wastes[run.run.id]["compute"] > 0.1 for run in slower.runs)


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"steps": 30}, {"world_size": 4}, SLOWED, {"overrides": ("sync.name=local_sgd",)}])
def test_arms_of_other_work_share_no_ideal_and_keep_their_parts(launch: Launch, other: dict[str, object]) -> None:
    arms, wastes = shared(launch, static={}, partition={}, other=other)
    *same, unlike = arms
    for run in unlike.runs:
        waste = wastes[run.run.id]
        assert (waste["s"], waste["compute"], waste["padding"]) == (None, None, waste_of(run)["padding"])
        assert waste["reason_said"]["say"] == "waste.not_shared"
    assert None not in {wastes[run.run.id]["s"] for arm in same for run in arm.runs}


def test_an_arm_without_an_ideal_of_its_own_gives_none(launch: Launch) -> None:
    _, wastes = shared(launch, static={"steps": 1, "warmup_steps": 0}, partition={})
    assert {waste["s"] for waste in wastes.values()} == {None}


@pytest.mark.parametrize(
    "fields",
    [
        {"world_size": 4},
        {"world_size": 4, "servers": 4, "attention_ms": 0.002},
        {"steps_written": 30, "status": "interrupted"},
        {"overrides": VIRTUAL},
        SLOWED,
        {"policy": "partition", "slow": {0: 2.0}, "overrides": ("schedule.speeds=[1.0, 2.0]",)},
    ],
)
def test_every_part_is_that_of_the_model_behind_the_rows(merged: Merged, fields: dict[str, Any]) -> None:
    """In ms of a step; of unequal ranks, what they lose is waiting."""
    run = merged(noise=0.0, **fields)
    unequal = "slow" in fields
    at_full_speed = 1.5 if unequal else run.workers
    steps, waste = run.measured, waste_of(run)
    rows = run.worker_rows().filter(pl.col("warmup") == 0).select(pl.col("^.*_tokens2?$").sum() / steps.height)
    of_step = rows.collect().row(0, named=True)
    real, padded = (
        0.05 * of_step[f"{name}_tokens"] + fields.get("attention_ms", 0) * of_step[f"{name}_tokens2"]
        for name in ("real", "padded")
    )
    ideal, time_ms = (2.0 * run.workers + real) / at_full_speed + 0.8, run.time_ms / steps.height
    expected = {"exposed_comm": 1.5, "planning": 0.02, "data": 0.2, "compute": 0.0, "other": 0.1}
    expected["padding"] = (padded - real) / at_full_speed
    expected["waiting"] = time_ms - ideal - sum(expected.values())
    assert waste["s"] == pytest.approx(time_ms / ideal, rel=1e-3)
    assert {name: waste[name] * time_ms for name in PARTS} == pytest.approx(expected, rel=1e-3, abs=0.01)
    assert unequal or waste["waiting"] == pytest.approx(summary_of(run)["wait_fraction"], rel=1e-6)


def packed(row: StepRow) -> dict[str, object]:
    return {"layout": "packed", "padded_tokens": row.real_tokens, "padded_tokens2": row.real_tokens2}


def split(row: StepRow) -> dict[str, object]:
    return {
        "micro_batches": 1 + row.step % 3,
        "padded_tokens": row.padded_tokens - row.step % 5,
        "padded_tokens2": row.padded_tokens2 - row.max_seq_len_in_batch * (row.step % 7),
    }


@pytest.mark.parametrize("dealt", [packed, split])
def test_the_cost_of_packed_rows_and_of_several_micro_batches_is_found(merged: Merged, dealt: Any) -> None:
    def made(row: StepRow) -> dict[str, object]:
        here = replace(row, **dealt(row))
        cost = 2.0 * here.micro_batches + 0.05 * here.padded_tokens + 0.002 * here.padded_tokens2
        return {**dealt(row), "compute_ms": cost}

    found = fit_compute(compute_rows(merged("partition", world_size=4, row=made), np.ones(4)))

    assert found is not None
    assert (found.alpha, found.beta, found.gamma) == pytest.approx((2.0, 0.05, 0.002), rel=1e-3)

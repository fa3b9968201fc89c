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


def rewritten(run: Run, *without: str, **columns: pl.Expr) -> MergedRun:
    for path in run.ranks_dir.glob("rank_*.csv"):
        pl.read_csv(path).drop(without).with_columns(**columns).write_csv(path)
    return merge_run(run)


def parts(waste: dict[str, object]) -> np.ndarray:
    return np.array([waste[name] for name in PARTS], dtype=np.float64)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": "partition", "world_size": 4},
        {"policy": "partition", "servers": 1},
        {"row": lambda row: {"micro_batches": 3}},
        {"world_size": 4, "ranks_written": 3},
        {"steps_written": 30, "status": "interrupted"},
        {"overrides": VIRTUAL},
        SLOWED,
        {"policy": "partition", "slow": {0: 2.0}, "overrides": ("schedule.speeds=[1.0, 2.0]",)},
        {"world_size": 4, "slow": {1: 1.4}},
    ],
)
def test_the_parts_add_up_to_the_waste(merged: Merged, fields: dict[str, object]) -> None:
    waste = waste_of(merged(**fields))

    assert waste["reason"] is None
    assert parts(waste).sum() == pytest.approx(1 - 1 / waste["s"], abs=1e-9)
    assert waste["s"] > 1
    assert (parts(waste)[:-1] > -1e-9).all()


def test_what_unequal_ranks_lose_is_waiting(merged: Merged) -> None:
    run = merged(noise=0.0, **SLOWED)
    waste, steps = waste_of(run), run.measured
    real, padded = (float(steps[name].sum()) for name in ("real_tokens", "padded_tokens"))
    ideal = (2 * 2.0 * steps.height + 0.05 * real) / 1.5 + 0.8 * steps.height
    padding = 0.05 * (padded - real) / 1.5
    rest = (1.5 + 0.02 + 0.2 + 0.1) * steps.height

    assert waste["s"] == pytest.approx(run.time_ms / ideal, rel=1e-3)
    assert waste["waiting"] * run.time_ms == pytest.approx(run.time_ms - ideal - padding - rest, rel=1e-3)
    assert waste["other"] * run.time_ms == pytest.approx(0.1 * steps.height, abs=0.5)


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
    assert parts(waste_of(packed)).sum() == pytest.approx(1 - 1 / waste_of(packed)["s"])


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
    static, partition = pair(world_size=4, attention_ms=attention_ms)
    found = recovery([(static, partition)])
    steps = static.measured
    tokens, tokens2, longest = (steps[name].to_numpy() for name in ("real_tokens", "real_tokens2", "longest"))
    mean = 2.0 + (0.05 * tokens + attention_ms * tokens2) / 4
    least = np.maximum(mean, 2.0 + 0.05 * longest + attention_ms * longest**2)
    total = steps["step_time_max_ms"].to_numpy()
    bound = (total - steps["compute_ms_max"].to_numpy() + least).sum()
    assert found.bound_speedup == pytest.approx(total.sum() / bound, rel=1e-3)
    other = partition.measured["step_time_max_ms"].sum()
    assert found.share == pytest.approx((total.sum() - other) / (total.sum() - bound), rel=1e-2)
    assert 0.3 < found.share < 1
    assert found.overhead_share == pytest.approx(2.0 / steps["compute_ms_max"].mean(), rel=1e-2)


@pytest.mark.parametrize(("workers", "batch"), [(2, 8), (2, 32), (4, 16), (8, 64)])
def test_no_deal_passes_the_bound_where_time_grows_with_the_square_of_the_length(pair, workers, batch):
    static, partition = pair(world_size=workers, global_batch=batch, attention_ms=0.002)
    for level in ("step", "window"):
        found = recovery([(static, partition)], level)
        assert static.time_ms / partition.time_ms <= found.bound_speedup
        assert found.share <= 1


def test_without_a_loss_no_share_is_stated(pair, monkeypatch):
    runs = pair()
    assert recovery([runs]).share is not None
    monkeypatch.setattr("dynbench.analysis.waste.LEAST_LOSS", 0.99)
    assert recovery([runs]).share is None


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


def test_a_bound_is_passed_by_no_more_than_its_fit_is_off(pair):
    """The bound is that of the baseline, whoever passes it."""
    static, partition = pair()
    bound_speedup = recovery([(static, partition)]).bound_speedup
    for passes, stated in ((0.01, (bound_speedup, 1)), (0.04, (bound_speedup, 1)), (0.06, None)):
        factor = static.time_ms / bound_speedup / (1 + passes) / partition.time_ms
        blocks = partition.blocks.with_columns(time_ms=pl.col("time_ms") * factor)
        found = recovery([(static, replace(partition, blocks=blocks))])
        assert (found and (found.bound_speedup, found.share)) == (stated and pytest.approx(stated))


SLOWER = {"policy": "partition", "compute_ms_per_token": 0.08}
"""Deals better than static, and computes each token in 1.6 times its time."""


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


@pytest.mark.parametrize("other", [{"steps": 30}, {"world_size": 4}, SLOWED, {"overrides": ("sync.name=local_sgd",)}])
def test_arms_of_other_work_share_no_ideal_and_keep_their_parts(launch: Launch, other: dict[str, object]) -> None:
    two, of_two = shared(launch, static={}, other=other)
    three, of_three = shared(launch, static={}, partition={}, other=other)

    wastes = of_two | of_three
    for run in (run for arm in (*two, three[2]) for run in arm.runs):
        waste = wastes[run.run.id]
        assert (waste["s"], waste["compute"]) == (None, None)
        assert waste["reason_said"]["say"] == "waste.not_shared"
        assert waste["padding"] == waste_of(run)["padding"]
    assert None not in {wastes[run.run.id]["s"] for arm in three[:2] for run in arm.runs}


def test_an_arm_without_an_ideal_of_its_own_gives_none(launch: Launch) -> None:
    _, wastes = shared(launch, static={"steps": 1, "warmup_steps": 0}, partition={})
    assert {waste["s"] for waste in wastes.values()} == {None}


@pytest.mark.parametrize(("servers", "attention_ms"), [(0, 0.0), (4, 0.002)])
def test_every_part_is_that_of_the_model_behind_the_rows(merged: Merged, servers: int, attention_ms: float) -> None:
    run = merged(world_size=4, noise=0.0, servers=servers, attention_ms=attention_ms)
    steps, waste = run.measured, waste_of(run)
    rows = run.worker_rows().filter(pl.col("warmup") == 0).select(pl.col("^.*_tokens2?$").sum())
    sums = rows.collect().row(0, named=True)
    real, padded = (
        0.05 * sums[f"{name}_tokens"] + attention_ms * sums[f"{name}_tokens2"] for name in ("real", "padded")
    )
    expected = {
        "padding": (padded - real) / 4,
        "waiting": (steps["compute_ms_max"] - steps["compute_ms_mean"]).sum(),
        "exposed_comm": 1.5 * steps.height,
        "planning": 0.02 * steps.height,
        "data": 0.2 * steps.height,
        "compute": 0.0,
        "other": 0.1 * steps.height,
    }
    assert waste["s"] == pytest.approx(run.time_ms / ((2.0 + 0.8) * steps.height + real / 4), rel=1e-4)
    assert {name: waste[name] * run.time_ms for name in PARTS} == pytest.approx(expected, rel=1e-3, abs=0.05)
    assert waste["waiting"] == pytest.approx(summary_of(run)["wait_fraction"], rel=1e-6)


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


LENGTHS = [100, *[10] * 7]


DEALT = {
    "static": [[[100, 10], [10, 10], [10, 10], [10, 10]], [[100, 10, 10], [10, 10], [10, 10], [10]]],
    "partition": [[[100], [10, 10, 10], [10, 10], [10, 10]]] * 2,
    "window": [[[100], [100], [10] * 3, [10] * 3], [[10, 10]] * 4],
}


def dealt(make_run, policy):
    """A run whose steps are those of `DEALT` in turn; a padded token takes 0.1 ms, the rest of a step 2 ms."""

    def made(row):
        step = DEALT[policy][row.step % 2]
        share = step[row.rank]
        padded = [len(each) * max(each) for each in step]
        return {
            "local_batch": len(share),
            "max_seq_len_in_batch": max(share),
            "real_tokens": sum(share),
            "real_tokens2": sum(length**2 for length in share),
            "padded_tokens": padded[row.rank],
            "padded_tokens2": padded[row.rank] * max(share),
            "compute_ms": 1 + 0.1 * padded[row.rank],
            "step_time_ms": 2 + 0.1 * max(padded),
        }

    window = 2 if policy == "window" else 1
    run = make_run(policy, world_size=4, global_batch=8, warmup_steps=2, steps=8, window=window, row=made)
    (run.path / "eval.csv").unlink()
    return merge_run(run)


def test_a_window_passes_the_bound_of_steps_and_is_held_against_that_of_all_steps_together(make_run):
    static, partition, window = (dealt(make_run, policy) for policy in DEALT)
    exact = recovery([(static, partition)], "step")
    assert (exact.within_steps, exact.share) == (True, pytest.approx(1))
    assert exact.bound_speedup == pytest.approx((22 + 32) / 24)
    assert recovery([(static, window)], "step") is None
    moved = recovery([(static, window)], "window")
    assert moved.bound_speedup == pytest.approx((22 + 32) / (2 * (2 + 0.1 * sum(LENGTHS) / 4)))
    assert moved.share == pytest.approx((54 - 16) / (54 - 2 * (2 + 0.1 * sum(LENGTHS) / 4)))
    assert not moved.within_steps

"""The parts of the waste: recomputed from the model behind the rows, adding up, unknown where nothing tells them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.summary import summary_of
from dynbench.analysis.waste import PARTS, compute_rows, fit_compute, waste_of
from dynbench.runs.run import Run

Make = Callable[..., Run]

VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2")


def rewritten(run: Run, **columns: pl.Expr) -> MergedRun:
    for path in run.ranks_dir.glob("rank_*.csv"):
        pl.read_csv(path).with_columns(**columns).write_csv(path)
    return merge_run(run)


def without_squares(run: Run) -> MergedRun:
    for path in run.ranks_dir.glob("rank_*.csv"):
        pl.read_csv(path).drop("real_tokens2", "padded_tokens2").write_csv(path)
    return merge_run(run)


def parts(waste: dict[str, object]) -> np.ndarray:
    return np.array([waste[name] for name in PARTS], dtype=np.float64)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": "partition", "world_size": 4},
        {"policy": "prefix"},
        {"policy": "partition", "servers": 1},
        {"micro_batches": 3},
        {"world_size": 4, "ranks_written": 3},
        {"steps_written": 30, "status": "interrupted"},
        {"steps": 2},
        {"overrides": VIRTUAL},
        {"slow": {1: 2.0}, "overrides": ("launch.slowdown={1: 2.0}",)},
        {"policy": "partition", "slow": {0: 2.0}, "overrides": ("schedule.speeds=[1.0, 2.0]",)},
        {"world_size": 4, "slow": {1: 1.4}},
    ],
)
def test_the_parts_add_up_to_the_waste(make_run: Make, fields: dict[str, object]) -> None:
    waste = waste_of(merge_run(make_run(**fields)))

    assert waste["reason"] is None
    assert parts(waste).sum() == pytest.approx(1 - 1 / waste["s"], abs=1e-9)
    assert waste["s"] > 1
    assert (parts(waste)[:-1] > -1e-9).all()


def computed(run: MergedRun, attention_ms: float) -> tuple[float, float]:
    """What the model behind the rows takes for real and for padded tokens, ms over all ranks, beside its overhead."""
    rows = (
        run.worker_rows()
        .filter(pl.col("warmup") == 0)
        .select(pl.col("^.*_tokens2?$").sum())
        .collect()
        .row(0, named=True)
    )
    real, padded = (
        0.05 * rows[f"{name}_tokens"] + attention_ms * rows[f"{name}_tokens2"] for name in ("real", "padded")
    )
    return real, padded


@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
@pytest.mark.parametrize("servers", [0, 4])
def test_every_part_is_that_of_the_model_behind_the_rows(make_run: Make, servers: int, attention_ms: float) -> None:
    run = merge_run(make_run(world_size=4, noise=0.0, servers=servers, attention_ms=attention_ms))
    steps, waste = run.measured, waste_of(run)
    real, padded = computed(run, attention_ms)
    compute = steps["compute_ms_mean"].sum()
    expected = {
        "padding": (padded - real) / 4,
        "waiting": steps["compute_ms_max"].sum() - compute,
        "exposed_comm": 1.5 * steps.height,
        "planning": 0.02 * steps.height,
        "data": 0.2 * steps.height,
        "compute": 0.0,
        "other": 0.1 * steps.height,
    }

    assert waste["s"] == pytest.approx(run.time_ms / ((2.0 + 0.8) * steps.height + real / 4), rel=1e-4)
    assert {name: waste[name] * run.time_ms for name in PARTS} == pytest.approx(expected, rel=1e-3, abs=0.05)
    assert waste["waiting"] == pytest.approx(summary_of(run)["wait_fraction"], rel=1e-6)


def test_what_unequal_ranks_lose_is_waiting(make_run: Make) -> None:
    run = merge_run(make_run(noise=0.0, slow={1: 2.0}, overrides=("launch.slowdown={1: 2.0}",)))
    waste, steps = waste_of(run), run.measured
    real, padded = (float(steps[name].sum()) for name in ("real_tokens", "padded_tokens"))
    ideal = (2 * 2.0 * steps.height + 0.05 * real) / 1.5 + 0.8 * steps.height
    padding = 0.05 * (padded - real) / 1.5
    rest = (1.5 + 0.02 + 0.2 + 0.1) * steps.height

    assert waste["s"] == pytest.approx(run.time_ms / ideal, rel=1e-3)
    assert waste["waiting"] * run.time_ms == pytest.approx(run.time_ms - ideal - padding - rest, rel=1e-3)
    assert waste["other"] * run.time_ms == pytest.approx(0.1 * steps.height, abs=0.5)


def test_micro_batches_beyond_one_per_rank_are_other(make_run: Make) -> None:
    one, two = (waste_of(merge_run(make_run(noise=0.0, micro_batches=count))) for count in (1, 2))
    run = merge_run(make_run(noise=0.0))

    launching = (two["other"] - one["other"]) * run.time_ms / run.measured.height
    assert launching == pytest.approx(1.0, abs=0.05), "half of the overhead of 2 ms"
    assert two["padding"] == pytest.approx(one["padding"], rel=1e-2)


OVERHEAD_MS, TOKEN_MS, SQUARE_MS = 2.0, 0.05, 0.002
PACKED = {"layout": pl.lit("packed"), "padded_tokens": pl.col("real_tokens"), "padded_tokens2": pl.col("real_tokens2")}
SPLIT = {
    "micro_batches": 1 + pl.col("step") % 3,
    "padded_tokens": pl.col("padded_tokens") - pl.col("step") % 5,
    "padded_tokens2": pl.col("padded_tokens2") - pl.col("max_seq_len_in_batch") * (pl.col("step") % 7),
}


@pytest.mark.parametrize("columns", [PACKED, SPLIT])
def test_the_cost_of_packed_rows_and_of_several_micro_batches_is_found(
    make_run: Make, columns: dict[str, pl.Expr]
) -> None:
    run = rewritten(make_run("partition", world_size=4), **columns)
    terms = ("micro_batches", "padded_tokens", "padded_tokens2")
    cost = pl.sum_horizontal(
        ms * pl.col(name) for ms, name in zip((OVERHEAD_MS, TOKEN_MS, SQUARE_MS), terms, strict=True)
    )
    found = fit_compute(compute_rows(rewritten(run.run, compute_ms=cost), np.ones(4)))

    assert found is not None
    assert (found.alpha, found.beta, found.gamma) == pytest.approx((OVERHEAD_MS, TOKEN_MS, SQUARE_MS), rel=1e-3)


def test_rows_of_an_earlier_version_have_an_ideal_only_where_nothing_is_padded(make_run: Make) -> None:
    old = without_squares(make_run())
    waste = waste_of(old)
    assert {waste[name] for name in ("s", *PARTS)} == {None}
    assert waste["reason_said"]["say"] == "waste.no_squares"
    assert fit_compute(compute_rows(old, np.ones(2))) is None

    packed = rewritten(without_squares(make_run()).run, padded_tokens=pl.col("real_tokens"))
    needed = packed.measured["compute_ms_mean"].sum() + packed.measured["optimizer_ms_mean"].sum()
    assert waste_of(packed)["s"] == pytest.approx(packed.time_ms / needed)
    assert parts(waste_of(packed)).sum() == pytest.approx(1 - 1 / waste_of(packed)["s"])


def test_without_padding_the_compute_itself_is_needed_whatever_it_grows_with(make_run: Make) -> None:
    run = rewritten(make_run(), **dict.fromkeys(("padded_tokens", "real_tokens"), pl.lit(64)))
    waste = waste_of(run)
    needed = run.measured["compute_ms_mean"].sum() + run.measured["optimizer_ms_mean"].sum()

    assert waste["padding"] == 0
    assert waste["s"] == pytest.approx(run.time_ms / needed)
    assert parts(waste).sum() == pytest.approx(1 - 1 / waste["s"], abs=1e-9)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"compute_ms": 50.0 - pl.col("padded_tokens") / 100}, "do not grow"),
        ({"padded_tokens": pl.lit(64), "real_tokens": pl.lit(60)}, "do not grow"),
        ({"warmup": pl.lit(1)}, "no measured step"),
    ],
)
def test_where_no_ideal_can_be_stated_the_reason_stands_there(
    make_run: Make, columns: dict[str, pl.Expr], reason: str
) -> None:
    waste = summary_of(rewritten(make_run(), **columns))["waste"]

    assert {waste[name] for name in ("s", *PARTS)} == {None}
    assert reason in waste["reason"]
    assert waste["reason_said"]["text"] == waste["reason"]

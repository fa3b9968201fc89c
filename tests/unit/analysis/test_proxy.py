"""Predicted cost against measured compute: planted costs are found again, for every cost type."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.merge import merge_run
from dynbench.analysis.proxy import proxy_error
from dynbench.analysis.summary import summarise
from dynbench.runs.atomic import write_json
from dynbench.runs.records import StepRow
from dynbench.runs.row_writer import RowWriter
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem

OPTIMIZER_MS, DATA_MS = 1.25, 0.5

COSTS = {
    "tokens": lambda n, length: n * length,
    "tokens_sq": lambda n, length: (n * length) ** 2,
    "attention": lambda n, length: n * length + 0.01 * n * length**2,
    "measured": lambda n, length: 2.0 + 0.05 * n * length + 0.001 * n * length**2,
}
OVERRIDES = {
    "attention": ("schedule.attention_a=0.01",),
    "measured": ("schedule.cost_coefficients=[2.0,0.05,0.001]",),
}


def rewrite(run, compute_ms, micro_batches=1, warmup_factor=1.0):
    """Rows of two ranks and twelve steps, two of them warm-up, whose compute is a function of count and length."""
    rng = np.random.default_rng(3)
    for rank in range(2):
        writer = RowWriter(run.rank_file(rank))
        for step in range(12):
            n, length = int(rng.integers(2, 20)), int(rng.integers(4, 90))
            ms = float(compute_ms(n, length, rank)) * (warmup_factor if step < 2 else 1.0)
            writer.write(
                StepRow(
                    step=step, rank=rank, warmup=int(step < 2), policy="static", local_batch=n,
                    micro_batches=micro_batches, max_seq_len_in_batch=length, real_tokens=n, padded_tokens=n * length,
                    real_tokens2=n, padded_tokens2=n * length**2,
                    plan_ms=0.1, data_ms=DATA_MS, forward_ms=ms / 2, backward_ms=ms / 2, sync_ms=1.0,
                    optimizer_ms=OPTIMIZER_MS, compute_ms=ms, step_time_ms=ms + 3, peak_mem_mb=1.0,
                    reserved_mem_mb=1.0, loss=0.5, work_hash=1, skipped=0, weight=float(n),
                )
            )  # fmt: skip
        writer.close()
    return run


def a_run(make_run, cost_type, *overrides):
    settings = (f"schedule.cost_type={cost_type}", *OVERRIDES.get(cost_type, ()), *overrides)
    run = make_run("static", steps=10, warmup_steps=2, overrides=settings)
    for file in run.ranks_dir.iterdir():
        file.unlink()
    return run


@pytest.mark.parametrize("planned", COSTS)
@pytest.mark.parametrize("true", COSTS)
def test_the_right_cost_has_no_error_and_a_wrong_one_some(make_run, planned, true):
    # A probe times data and optimizer too, so `measured` holds them; the others stand for compute alone.
    scale, beside = (1.0, OPTIMIZER_MS + DATA_MS) if true == "measured" else (0.37, 0.0)
    run = a_run(make_run, planned)
    rewrite(run, lambda n, length, _: scale * COSTS[true](n, length) - beside, warmup_factor=50.0)

    found = proxy_error(merge_run(run))

    assert found["cost_type"] == planned
    if planned == true:
        assert found["cost"]["correlation"] == pytest.approx(1.0)
        assert found["cost"]["mape"] == pytest.approx(0.0, abs=1e-5)
    else:
        assert found["cost"]["mape"] > 0.01
    assert (found["padded_tokens"]["mape"] < 1e-5) == (true == "tokens")


def test_slowed_ranks_are_predicted_slower(make_run):
    run = a_run(make_run, "tokens", "launch.slowdown={1: 3.0}")
    rewrite(run, lambda n, length, rank: n * length * (3 if rank == 1 else 1))

    assert proxy_error(merge_run(run))["padded_tokens"]["mape"] == pytest.approx(0.0, abs=1e-5)


PRICED = {
    "tokens": CostModel("tokens"),
    "tokens_sq": CostModel("tokens_sq"),
    "attention": CostModel("attention", attention_a=0.01),
    "measured": CostModel("measured", alpha=2.0, beta=0.05, gamma=0.001, further=1.5),
}


def planned_rows(run, cost, layout, parts):
    """Rows of two ranks whose compute takes what the planner says of their micro-batches, dealt at random."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(3, 90, 400)
    problem = Problem(lengths=lengths, workers=2, global_batch=40, cost=cost, layout=layout, micro_batches=None)
    writers = [RowWriter(run.rank_file(rank)) for rank in range(2)]
    for step in range(12):
        ids = rng.permutation(400)[:40]
        shares = [np.split(each, np.sort(rng.choice(np.arange(1, len(each)), parts - 1, replace=False)))
                  for each in np.split(ids, [int(rng.integers(8, 32))])]  # fmt: skip
        plan = StepPlan(step, tuple(map(tuple, shares)), packed=layout == "packed")
        for rank, ms in enumerate(step_costs(plan, problem)):
            share, ms = shares[rank], float(ms) - (OPTIMIZER_MS + DATA_MS if cost.cost_type == "measured" else 0)
            squares = [int((lengths[batch] ** 2).sum()) for batch in share]
            longest = [int(lengths[batch].max()) for batch in share]
            real = int(lengths[np.concatenate(share)].sum())
            padded = sum(len(batch) * each for batch, each in zip(share, longest, strict=True))
            padded2 = sum(len(batch) * each**2 for batch, each in zip(share, longest, strict=True))
            writers[rank].write(
                StepRow(
                    step=step, rank=rank, warmup=int(step < 2), policy="static", local_batch=sum(map(len, share)),
                    micro_batches=parts, max_seq_len_in_batch=max(longest), real_tokens=real,
                    padded_tokens=real if plan.packed else padded, real_tokens2=sum(squares),
                    padded_tokens2=sum(squares) if plan.packed else padded2,
                    plan_ms=0.1, data_ms=DATA_MS, forward_ms=ms / 2, backward_ms=ms / 2, sync_ms=1.0,
                    optimizer_ms=OPTIMIZER_MS, compute_ms=ms, step_time_ms=ms + 3, peak_mem_mb=1.0,
                    reserved_mem_mb=1.0, loss=0.5, work_hash=1, skipped=0, weight=1.0, layout=layout,
                )
            )  # fmt: skip
    for writer in writers:
        writer.close()
    return run


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("cost_type", COSTS)
def test_a_row_costs_what_the_planner_says_its_plan_costs(make_run, cost_type, layout, parts):
    further = ("schedule.further_ms=1.5",) if cost_type == "measured" else ()
    run = planned_rows(a_run(make_run, cost_type, *further), PRICED[cost_type], layout, parts)

    found = proxy_error(merge_run(run))["cost"]

    if cost_type == "tokens_sq" and parts > 1:
        assert found["mape"] is None, "squares of micro-batches' tokens are not recorded"
    else:
        assert found["mape"] == pytest.approx(0.0, abs=1e-5)
        assert found["correlation"] == pytest.approx(1.0)


@pytest.mark.parametrize(("layout", "parts"), [("padded", 1), ("padded", 3), ("packed", 1)])
@pytest.mark.parametrize("cost_type", COSTS)
def test_of_rows_without_squares_only_padded_micro_batches_one_per_rank_are_priced(make_run, cost_type, layout, parts):
    run = planned_rows(a_run(make_run, cost_type), replace(PRICED[cost_type], further=None), layout, parts)
    for path in run.ranks_dir.glob("rank_*.csv"):
        pl.read_csv(path).drop("real_tokens2", "padded_tokens2").write_csv(path)

    found = proxy_error(merge_run(run))["cost"]

    told = cost_type == "tokens" or (parts == 1 and (layout == "padded" or cost_type == "tokens_sq"))
    assert found["mape"] == (pytest.approx(0.0, abs=1e-5) if told else None)


def test_measured_without_coefficients_at_hand_is_not_told(make_run):
    run = a_run(make_run, "measured")
    text = run.config_file.read_text().replace("cost_coefficients: [2.0, 0.05, 0.001]", "cost_coefficients: null")
    run.config_file.write_text(text.replace("probe:\n  run: null", "probe:\n  run: gone"))
    rewrite(run, lambda n, length, _: n * length)

    assert proxy_error(merge_run(run))["cost"] == {"correlation": None, "mape": None}


def test_equal_shares_have_no_correlation_but_an_error(make_run):
    run = rewrite(a_run(make_run, "tokens"), lambda n, length, _: 5.0)

    found = summarise(run)["proxy"]

    assert found["padded_tokens"]["correlation"] is None
    assert found["padded_tokens"]["mape"] > 0


def test_the_coefficients_of_a_probe_are_used(make_run, store):
    probe = {"alpha_ms": 2.0, "beta_ms_per_token": 0.05, "gamma_ms_per_token2": 0.001, "heldout": {}}
    record = {
        "device": "cpu", "precision": "fp32", "memory_limit_mb": None, "world_size": 2, "global_batch": 16,
        "pad_to_multiple_of": 1, "workload": {}, "capacity": [], "tables": [], "trials": [], "timings": [],
        "cost_model": probe, "memory_model": None, "speeds": [1.0, 1.0], "allreduce": None, "soak": None,
        "predicted_speedup": {}, "break_even_batch": None,
    }  # fmt: skip
    (store.root / "a-probe").mkdir(parents=True)
    write_json(store.root / "a-probe" / "probe.json", record)
    run = a_run(make_run, "measured", "probe.run=a-probe")
    run.config_file.write_text(
        run.config_file.read_text().replace("cost_coefficients: [2.0, 0.05, 0.001]", "cost_coefficients: null")
    )
    rewrite(run, lambda n, length, _: COSTS["measured"](n, length) - OPTIMIZER_MS - DATA_MS)

    assert proxy_error(merge_run(run))["cost"]["mape"] == pytest.approx(0.0, abs=1e-5)

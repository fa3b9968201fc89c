"""The pace of steps and ranks, and how well costs and predictions stood for measured time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.arms import Arm, named_arms
from dynbench.analysis.checks import comparisons, run_checks
from dynbench.analysis.checks.evidence import Evidence, Finding, worded
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.pace import effects, predicted_speedup, proxy_error, slowest_ranks
from dynbench.analysis.summary import summarise
from dynbench.config.schema import Analysis
from dynbench.engine.turn_order import Turns
from dynbench.runs.atomic import write_json
from dynbench.runs.records import StepRow
from dynbench.runs.row_writer import RowWriter
from dynbench.runs.run import Run
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem

Make = Callable[..., Run]


def blamed(*launches: MergedRun) -> list[Finding]:
    found = run_checks(Evidence(named_arms({"arm": launches}), [], Analysis()))
    return [finding for finding in found if finding.id == "slowest_rank"]


def launches(make_run: Make, policy: str, count: int = 3, **fields: object) -> list[MergedRun]:
    return [merge_run(make_run(policy, **fields)) for _ in range(count)]


@pytest.mark.parametrize(
    ("policy", "ranks", "servers"),
    [("static", 2, 0), ("static", 4, 4), ("prefix", 2, 0), ("prefix", 4, 0), ("partition", 4, 0)],
)
def test_a_rank_that_is_always_slow_is_caught_and_named(make_run: Make, policy: str, ranks: int, servers: int) -> None:
    fields = {"world_size": ranks, "servers": servers, "slow": {1: 1.3}}
    (found,) = blamed(*launches(make_run, policy, **fields))

    assert (found.severity, found.values["rank"]) == ("warn", 1 + servers)
    assert found.values["pace"] == pytest.approx(1.3, rel=0.03)
    assert found.values["share"] > found.values["equal"] == 1 / ranks
    assert "check that rank's machine" in found.hint


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_equal_ranks_are_not_blamed(make_run: Make, policy: str, noise: float) -> None:
    """None of 60 launches, 240 ranks: at most 1.2 % of ranks at a confidence of 95 %, and far fewer by the limit."""
    for seed in range(15):
        assert blamed(merge_run(make_run(policy, world_size=4, noise=noise, seed=seed))) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("attention_ms", [0.0, 0.002])
def test_a_rank_that_always_gets_the_longest_samples_is_not_blamed(
    make_run: Make, ranks: int, attention_ms: float
) -> None:
    runs = launches(make_run, "sorted_equal", world_size=ranks, attention_ms=attention_ms)

    assert slowest_ranks(runs[0])["shares"][0] > 0.9
    assert blamed(*runs) == []


@pytest.mark.slow
def test_where_no_rank_has_work_like_the_others_none_is_blamed_until_an_arm_tells(make_run: Make) -> None:
    """Of two ranks under `partition`, one always has few long samples, the other many short ones."""
    partition, static = (launches(make_run, policy, slow={1: 1.3}) for policy in ("partition", "static"))
    together = run_checks(Evidence(named_arms({"partition": partition, "static": static}), [], Analysis()))

    assert blamed(*partition) == []
    assert [item.values["arm"] for item in together if item.id == "slowest_rank"] == ["static"]


def test_few_steps_and_missing_ranks_are_not_judged(make_run: Make) -> None:
    assert blamed(merge_run(make_run("partition", steps=10, slow={1: 2.0}))) == []
    assert blamed(merge_run(make_run("partition", world_size=4, ranks_written=3, slow={1: 2.0}))) == []


def test_shares_count_ties_in_part_and_know_no_rank_without_rows(make_run: Make) -> None:
    run = make_run("partition", world_size=3, ranks_written=2, steps=4, warmup_steps=0)
    busy = {0: [5.0, 5.0, 5.0, 5.0], 1: [5.0, 9.0, 1.0, 1.0]}
    for rank, compute in busy.items():
        rows = pl.read_csv(run.rank_file(rank))
        rows.with_columns(compute_ms=pl.Series(compute), plan_ms=0.5, data_ms=1.0).write_csv(run.rank_file(rank))

    assert slowest_ranks(merge_run(run)) == {"distinct": 2, "shares": [0.625, 0.375, None], "equal": 0.5}


STEPS, WARMUP = 30, 3


After = dict[tuple[str, str], float]
"""An arm and the one before it, to the part by which its step takes longer."""


def launched(arms: str, launch: int, rng: np.random.Generator, after: After) -> dict[str, object]:
    """Runs of a shared launch whose steps take longer, by a part, after some arms."""
    order = Turns(tuple(arms), seed=7, launch=launch).rounds()
    rows: dict[str, list[dict[str, object]]] = {arm: [] for arm in arms}
    turn, before = 0, ""
    for step in range(WARMUP + STEPS):
        for position in next(order):
            arm = arms[position]
            tokens = int(rng.integers(400, 800))
            time = (20 + 0.1 * tokens) * rng.lognormal(0, 0.03) * (1 + after.get((arm, before), 0.0))
            rows[arm].append(
                {
                    "step": step,
                    "turn": turn,
                    "warmup": step < WARMUP,
                    "padded_tokens_max": tokens,
                    "step_time_max_ms": time,
                }
            )
            turn, before = turn + 1, arm
    made = {}
    for arm, steps in rows.items():
        table = pl.DataFrame(steps)
        made[arm] = SimpleNamespace(
            steps=table,
            measured=table.filter(~pl.col("warmup")),
            partial=False,
            facts=SimpleNamespace(together=f"launch{launch}"),
        )
    return made


def arms_of(arms: str, after: After, launches: int = 4, seed: int = 0) -> list[Arm]:
    rng = np.random.default_rng(seed)
    made = [launched(arms, launch, rng, after) for launch in range(launches)]
    return [Arm(arm, tuple(launch[arm] for launch in made)) for arm in arms]  # type: ignore[arg-type]


def seen(arms: list[Arm]) -> list[str]:
    evidence = SimpleNamespace(arms=arms, settings=Analysis())
    return [worded("predecessor", found).seen for found in comparisons.predecessor(evidence)]  # type: ignore[arg-type]


@pytest.mark.parametrize("arms", ["ab", "abc", "abcd"])
def test_what_an_arm_leaves_to_the_next_is_named(arms: str) -> None:
    said = seen(arms_of(arms, {("b", "a"): 0.15}))
    assert any(line.startswith("b: its steps take +1") and "after a than" in line for line in said), said
    assert not any(line.startswith("a:") for line in said)


@pytest.mark.slow
def test_equal_arms_are_hardly_ever_told_to_disturb_each_other() -> None:
    found = [seen(arms_of(arms, {}, seed=seed)) for seed in range(40) for arms in ("ab", "abc")]
    assert sum(map(bool, found)) <= 3


def test_one_launch_or_launches_apart_say_nothing() -> None:
    assert effects(arms_of("ab", {("b", "a"): 0.5}, launches=1)) == []
    alone = arms_of("ab", {("b", "a"): 0.5})
    for arm in alone:
        for run in arm.runs:
            run.facts.together = None
    assert effects(alone) == []


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


RECORD = {
    "device": "cpu",
    "precision": "fp32",
    "memory_limit_mb": None,
    "world_size": 2,
    "global_batch": 16,
    "pad_to_multiple_of": 1,
    "workload": {},
    "capacity": [],
    "tables": [],
    "trials": [],
    "timings": [],
    "cost_model": None,
    "memory_model": None,
    "speeds": [1.0, 1.0],
    "allreduce": None,
    "soak": None,
    "predicted_speedup": {"partition": 1.5, "prefix": 1.2, "packed": None},
    "break_even_batch": None,
}


@pytest.fixture
def predicted_launches(store, make_run):
    """`launches(record, *policies, settings=())`: merged runs that used a probe with that record."""

    def make(record, *policies, settings=()):
        probe = store.create("probe", "probe")
        if record is not None:
            write_json(probe.path / "probe.json", {"schema_version": 1, **record})
        overrides = (f"probe.run={probe.id}", *settings)
        return [merge_run(make_run(policy, overrides=overrides)) for policy in policies]

    return make


@pytest.mark.parametrize("record", [None, RECORD | {"world_size": 4}, RECORD | {"global_batch": 64}])
def test_a_probe_that_does_not_fit_predicts_nothing(predicted_launches, record):
    assert predicted_speedup(*predicted_launches(record, "static", "partition")) is None


@pytest.mark.parametrize(
    ("window", "said", "predicted"), [(8, {}, 1.6), (4, {}, None), (4, {"predicted_window": 4}, 1.6)]
)
def test_another_window_than_the_predicted_one_has_no_prediction(predicted_launches, window, said, predicted):
    record = RECORD | {"predicted_speedup": {"window": 1.6}} | said
    settings = ("schedule.policy=window", "schedule.mode=dynamic", f"schedule.window={window}")
    (static,), (planned,) = (
        predicted_launches(record, "static"),
        predicted_launches(record, "partition", settings=settings),
    )
    assert predicted_speedup(static, planned) == predicted

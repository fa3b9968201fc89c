"""Packed rows: against brute force where that is possible, against the bound where it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import PlanError, judge_plan

from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, plan_name, plan_names, plan_of
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting, step_costs, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace

COSTS = (
    CostModel("tokens", pad_to_multiple_of=64),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.03),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
)
CAPACITIES = (
    PackedCapacity(),
    PackedCapacity.uniform(45),
    PackedCapacity.per_rank([30, 60]),
    PackedCapacity.table([[(10, 60), (20, 45), (30, 35)]]),
    PackedCapacity.table([[(30, 70)], [(12, 50)]]),
)


def packed(lengths, workers, batch=None, **changes) -> Problem:
    lengths = np.asarray(lengths, dtype=np.int64)
    return Problem(lengths, workers, batch or len(lengths), **{"order": "file", "layout": "packed", **changes})


def first(policy: str, problem: Problem) -> StepPlan:
    return next(make_policy(policy, problem).plans())


def rows(plan: StepPlan, problem: Problem) -> list[list[list[int]]]:
    """Lengths per rank and row."""
    return [[problem.lengths[row].tolist() for row in share] for share in plan.shares]


def heavy_tailed(n: int, seed: int = 0, high: int = 1024) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(5, 1, n).astype(np.int64), 16, high)


@cache
def ways(samples: int, ranks: int) -> np.ndarray:
    """Every way to give each sample a rank without leaving one idle, shape [ways, samples]."""
    found = np.array(list(product(range(ranks), repeat=samples)))
    return found[[len(set(way)) == ranks for way in found.tolist()]]


def least(problem: Problem) -> float | None:
    """Least maximum of one row per rank over all deals; None where nothing fits."""
    deals = ways(len(problem.lengths), problem.workers)
    slowest, fits = np.zeros(len(deals)), np.ones(len(deals), dtype=bool)
    for rank, speed in enumerate(problem.relative_speeds()):
        mine = deals == rank
        tokens, squares = (mine * problem.lengths).sum(axis=1), (mine * problem.lengths**2).sum(axis=1)
        slowest = np.maximum(slowest, problem.cost.cost_packed(tokens, squares) / speed)
        fits &= tokens <= problem.capacity.limits_of(rank, np.where(mine, problem.lengths, 0).max(axis=1))
    return float(slowest[fits].min()) if fits.any() else None


@pytest.mark.slow
@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=3, max_size=8),
    workers=st.integers(2, 3),
    cost=st.sampled_from(COSTS),
    capacity=st.sampled_from(CAPACITIES),
    speeds=st.sampled_from([None, [1.0, 2.0, 0.5]]),
)
def test_few_samples_are_dealt_as_well_as_can_be_and_what_fits_is_found(lengths, workers, cost, capacity, speeds):
    if len(capacity.rows) > 1:
        workers = 2
    speed = None if speeds is None else np.array(speeds[:workers])
    problem = packed(lengths, workers, cost=cost, capacity=capacity, speeds=speed)
    best = least(problem)
    if best is None:
        with pytest.raises(NothingFits):
            first("partition", problem)
        return
    plan = first("partition", problem)
    judge_plan(plan, problem, range(len(lengths)))
    assert plan.exact == ("maximum" if cost.cost_type == "tokens_sq" else "both")
    assert step_costs(plan, problem).max() == pytest.approx(best, rel=1e-9)
    assert step_facts(plan, problem).bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.cost_type)
def test_packed_rows_have_no_padding_and_nearly_reach_their_bound(cost):
    problem = Problem(heavy_tailed(4_000), 8, 128, cost=cost, layout="packed")
    for plan in islice(make_policy("partition", problem).plans(), 10):
        facts = step_facts(plan, problem)
        assert facts.padded_tokens.tolist() == facts.real_tokens.tolist()
        assert facts.bound <= facts.max_cost <= 1.005 * facts.bound


@pytest.mark.parametrize(
    ("trace", "most"), [("sst2", 1.002), ("lognormal", 1.002), ("gsm8k", 1.004)], ids=["sst2", "lognormal", "gsm8k"]
)
@pytest.mark.parametrize(("workers", "batch"), [(4, 32), (8, 64), (16, 256)])
def test_from_eight_samples_a_rank_on_the_bound_is_met_within_a_part_of_a_percent(trace, most, workers, batch):
    problem = Problem(built_in_trace(trace).lengths, workers, batch, layout="packed")
    facts = [step_facts(plan, problem) for plan in islice(make_policy("partition", problem).plans(), 25)]
    assert sum(f.max_cost for f in facts) <= most * sum(f.bound for f in facts)


def test_a_capacity_counts_tokens_by_the_longest_sample():
    capacity = PackedCapacity.table([[(10, 40), (20, 30)]])
    problem = packed([20, 9, 9, 9, 9, 9], 2, capacity=capacity)
    plan = first("partition", problem)
    assert sorted(sorted(row) for (row,) in rows(plan, problem)) == [[9, 9, 9, 9], [9, 20]]
    assert step_facts(plan, problem).capacity_violations == 0
    over = StepPlan(0, ((np.arange(5),), (np.array([5]),)), packed=True)
    assert step_facts(over, problem).capacity_violations == 1
    with pytest.raises(PlanError, match="rank 0 runs 56 tokens at length 20, its capacity is 30"):
        judge_plan(over, problem)


def test_a_fixed_number_of_rows_is_run_by_every_rank():
    problem = packed([100, *[3] * 11], 3, micro_batches=2)
    plan = first("partition", problem)
    assert [len(share) for share in plan.shares] == [2, 2, 2]
    assert sorted(plan.sample_ids()) == list(range(12))
    with pytest.raises(UsageError, match="Use at most 3"):
        make_policy("partition", packed([1] * 9, 3, micro_batches=4))


@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("parts", [1, "auto"])
def test_whether_a_run_fits_is_what_planning_meets(policy, parts):
    for seed in range(6):
        lengths = heavy_tailed(150, seed, 300)
        capacity = PackedCapacity.table([[(100, 900), (280, 700)]])
        problem = packed(lengths, 3, 18, seed=seed, order="shuffle", capacity=capacity, micro_batches=parts)
        misfit = make_policy(policy, problem).misfit(20)
        try:
            list(islice(make_policy(policy, problem).plans(), 20))
        except NothingFits as error:
            assert misfit is not None
            assert misfit.message == error.message
            if isinstance(error, BatchTooLarge):
                found = largest_fitting(policy, problem, 20)
                assert found is not None
                fitting = replace(problem, global_batch=found.global_batch)
                assert make_policy(policy, fitting).misfit(20) is None
        else:
            assert misfit is None


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if "packed" not in entry.layouts])
def test_a_policy_that_needs_padding_is_refused_by_name(policy):
    with pytest.raises(UsageError, match=f"'packed' makes no sense under policy '{policy}'") as caught:
        make_policy(policy, packed([1, 2], 2))
    assert "static or partition" in caught.value.hint


def test_names_of_plans_and_what_they_mean():
    assert plan_name("partition", "packed") == "packed"
    assert plan_names("packed", in_train=True) == ("static packed", "packed", "token_budget packed")
    assert plan_names("padded", in_train=True) == tuple(name for name in POLICIES if POLICIES[name].in_train)
    for layout in LAYOUTS:
        for name in plan_names(layout):
            policy, found = plan_of(name)
            assert (plan_name(policy, found), found) == (name, layout)

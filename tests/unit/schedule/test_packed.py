"""Packed rows: against the bound, their capacities, whether a run fits, and the names of plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_rules import COSTS, first_plan, heavy_tailed, judge_plan, plans_of, problem_of, taken

from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, plan_name, plan_names, plan_of
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace


@pytest.mark.parametrize("cost", COSTS[1:], ids=lambda cost: cost.cost_type)
def test_packed_rows_have_no_padding_and_nearly_reach_their_bound(cost: CostModel) -> None:
    problem = Problem(heavy_tailed(4_000), 8, 128, cost=cost, layout="packed")
    for plan in plans_of("partition", problem, 10):
        facts = step_facts(plan, problem)
        assert facts.padded_tokens.tolist() == facts.real_tokens.tolist()
        assert facts.bound <= facts.max_cost <= 1.005 * facts.bound


@pytest.mark.parametrize(("trace", "most"), [("sst2", 1.002), ("lognormal", 1.002), ("gsm8k", 1.004)])
@pytest.mark.parametrize(("workers", "batch"), [(4, 32), (8, 64), (16, 256)])
def test_from_eight_samples_a_rank_on_the_bound_is_met_within_a_part_of_a_percent(
    trace: str, most: float, workers: int, batch: int
) -> None:
    problem = Problem(built_in_trace(trace).lengths, workers, batch, layout="packed")
    facts = [step_facts(plan, problem) for plan in plans_of("partition", problem, 25)]
    assert sum(f.max_cost for f in facts) <= most * sum(f.bound for f in facts)


def test_a_capacity_counts_tokens_by_the_longest_sample() -> None:
    capacity = PackedCapacity.table([[(10, 40), (20, 30)]])
    problem = problem_of([20, 9, 9, 9, 9, 9], layout="packed", capacity=capacity)
    plan = first_plan("partition", problem)
    assert sorted(sorted(problem.lengths[row].tolist()) for (row,) in plan.shares) == [[9, 9, 9, 9], [9, 20]]
    assert step_facts(plan, problem).capacity_violations == 0
    over = StepPlan(0, ((np.arange(5),), (np.array([5]),)), packed=True)
    assert step_facts(over, problem).capacity_violations == 1
    with pytest.raises(AssertionError, match="rank 0 runs 56 tokens of at most 30"):
        judge_plan(over, problem)


def test_a_fixed_number_of_rows_is_run_by_every_rank() -> None:
    plan = first_plan("partition", problem_of([100, *[3] * 11], 3, layout="packed", micro_batches=2))
    assert [len(share) for share in plan.shares] == [2, 2, 2]
    assert taken([plan]) == list(range(12))
    with pytest.raises(UsageError, match="Use at most 3"):
        make_policy("partition", problem_of([1] * 9, 3, layout="packed", micro_batches=4))


@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("parts", [1, "auto"])
def test_whether_a_run_fits_is_what_planning_meets(policy: str, parts: int | str) -> None:
    capacity = PackedCapacity.table([[(100, 900), (280, 700)]])
    same = {"capacity": capacity, "micro_batches": parts, "layout": "packed"}
    for seed in range(6):
        problem = Problem(heavy_tailed(150, seed, 300), 3, 18, seed=seed, **same)
        misfit = make_policy(policy, problem).misfit(20)
        try:
            plans_of(policy, problem, 20)
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
def test_a_policy_that_needs_padding_is_refused_by_name(policy: str) -> None:
    with pytest.raises(UsageError, match=f"'packed' makes no sense under policy '{policy}'"):
        make_policy(policy, problem_of([1, 2], layout="packed"))


def test_names_of_plans_and_what_they_mean() -> None:
    assert plan_name("partition", "packed") == "packed"
    assert plan_names("packed", in_train=True) == ("static packed", "packed", "token_budget packed")
    assert plan_names("padded", in_train=True) == tuple(name for name in POLICIES if POLICIES[name].in_train)
    for layout in LAYOUTS:
        for name in plan_names(layout):
            policy, found = plan_of(name)
            assert (plan_name(policy, found), found) == (name, layout)

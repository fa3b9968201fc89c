"""Packed rows: against the bound, their capacities, and the names of plans."""

from __future__ import annotations

import numpy as np
import pytest
from plan_rules import COSTS, first_plan, heavy_tailed, judge_plan, plans_of, problem_of

from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, plan_name, plan_names, plan_of
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem
from dynbench.schedule.traces import built_in_trace


@pytest.mark.parametrize(
    ("trace", "workers", "batch", "changes", "most"),
    [
        *(("heavy", 8, 128, {"cost": cost}, 1.005) for cost in COSTS[1:]),
        *(("heavy", 4, 128, {"micro_batches": 4, "objective": objective}, 1.01) for objective in ("sum", "slots")),
        *(
            (trace, *size, {}, most)
            for trace, most in (("sst2", 1.002), ("lognormal", 1.002), ("gsm8k", 1.004))
            for size in ((4, 32), (8, 64), (16, 256))
        ),
    ],
    ids=str,
)
def test_the_bound_is_nearly_met_without_padding(
    trace: str, workers: int, batch: int, changes: dict[str, object], most: float
) -> None:
    lengths = heavy_tailed(2048) if trace == "heavy" else built_in_trace(trace).lengths
    problem = Problem(lengths, workers, batch, layout="packed", **changes)
    facts = [step_facts(plan, problem) for plan in plans_of("partition", problem, 15)]
    for step in facts:
        assert step.padded_tokens.tolist() == step.real_tokens.tolist()
        assert step.bound <= step.max_cost
    assert sum(step.max_cost for step in facts) <= most * sum(step.bound for step in facts)


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


def test_names_of_plans_and_what_they_mean() -> None:
    assert plan_name("partition", "packed") == "packed"
    assert plan_names("packed", in_train=True) == ("static packed", "packed", "token_budget packed")
    assert plan_names("padded", in_train=True) == tuple(name for name in POLICIES if POLICIES[name].in_train)
    for layout in LAYOUTS:
        for name in plan_names(layout):
            policy, found = plan_of(name)
            assert (plan_name(policy, found), found) == (name, layout)

"""Cost types compared: every plan is judged by the same yardstick, recomputed here from the plans themselves."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.measure import compare_cost_types
from dynbench.schedule.policy import Problem, make_policy

COSTS = {
    "tokens": CostModel("tokens"),
    "attention": CostModel("attention", attention_a=0.5),
    "measured": CostModel("measured", alpha=3.0, beta=0.1, gamma=0.01),
}
STEPS = 6


def problem(**changes) -> Problem:
    lengths = np.random.default_rng(1).integers(3, 120, 400)
    return replace(Problem(lengths, workers=3, global_batch=18, seed=2), **changes)


def slowest_of(policy: str, planned: Problem, judge: CostModel) -> list[float]:
    """What the slowest rank's share costs a judge, step by step."""
    return [
        max(sum(float(judge.cost(len(ids), planned.lengths[ids].max())) for ids in share) for share in plan.shares)
        for plan in islice(make_policy(policy, planned).plans(), STEPS)
    ]


def test_every_plan_is_judged_by_every_yardstick():
    base = problem()
    found = {(line.policy, line.cost_type, line.judge): line for line in
             compare_cost_types(base, ("prefix", "partition"), COSTS, STEPS)}  # fmt: skip

    assert len(found) == 2 * 3 * 2
    for (policy, cost_type, judge), line in found.items():
        slowest = slowest_of(policy, replace(base, cost=COSTS[cost_type]), COSTS[judge])
        assert line.mean == pytest.approx(np.mean(slowest))
        assert line.p95 == pytest.approx(np.percentile(slowest, 95))
    for judge in ("tokens", "measured"):  # who minimises the yardstick itself is not beaten on the same samples
        means = {cost: found["partition", cost, judge].mean for cost in COSTS}
        assert means[judge] == min(means.values())


def test_without_measured_coefficients_tokens_alone_judge():
    costs = {name: cost for name, cost in COSTS.items() if name != "measured"}

    assert {line.judge for line in compare_cost_types(problem(), ("partition",), costs, STEPS)} == {"tokens"}


def test_what_cannot_be_planned_is_left_out():
    tight = problem(capacity=Capacity.uniform(1))

    assert list(compare_cost_types(tight, ("prefix", "partition"), COSTS, STEPS)) == []


def test_every_rank_runs_one_micro_batch_and_every_step_is_planned_alone_whatever_the_problem_asks():
    asked = problem(micro_batches=2, window=3)

    for line in compare_cost_types(asked, ("static", "partition", "window"), COSTS, STEPS):
        alone = problem(cost=COSTS[line.cost_type], micro_batches=1, window=1)
        assert line.mean == pytest.approx(np.mean(slowest_of(line.policy, alone, COSTS[line.judge]))), line


def test_what_one_cost_cannot_plan_the_others_are_planned_with():
    # Padded to a multiple of 256, which only the first cost asks for, no sample is within the capacities.
    costs = {"tokens": CostModel("tokens", pad_to_multiple_of=256), "measured": COSTS["measured"]}
    tight = problem(capacity=Capacity.table([[(128, 12)]]))

    lines = list(compare_cost_types(tight, ("partition", "window"), costs, STEPS))

    assert {(line.policy, line.cost_type) for line in lines} == {("partition", "measured"), ("window", "measured")}

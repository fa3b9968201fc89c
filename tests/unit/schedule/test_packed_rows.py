"""Packed rows where all deals are too many to look at: what is said of them holds, and what rows cost is counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plan_rules import COSTS, first_plan, heavy_tailed, judge_plan, problem_of

from dynbench.schedule.balancing import SEARCHED, Work, within_limits
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.plan import FloatArray

of_speeds = pytest.mark.parametrize("speeds", [None, np.array([1.0, 3.0, 2.0])], ids=["equal", "unequal"])
of_costs = pytest.mark.parametrize("cost", COSTS[1:], ids=lambda cost: cost.cost_type)


@of_speeds
@of_costs
def test_what_is_said_to_be_proven_is_what_meets_its_bound(cost: CostModel, speeds: FloatArray | None) -> None:
    """Of samples of one digit many deals meet it, of long ones few do."""
    said = set()
    for seed, longest in product(range(6), (4, 900)):
        lengths = np.random.default_rng(seed).integers(1, longest + 1, SEARCHED + 1 + 3 * seed)
        problem = problem_of(lengths, 3, layout="packed", cost=cost, speeds=speeds)
        plan = first_plan("partition", problem)
        judge_plan(plan, problem, range(len(lengths)))
        facts = step_facts(plan, problem)
        assert facts.bound <= facts.max_cost * (1 + 1e-12) and facts.max_cost <= 1.5 * facts.bound
        meets = facts.max_cost <= facts.bound * (1 + 1e-11)
        whole = "maximum" if cost.cost_type == "tokens_sq" else "both"
        assert plan.exact == (whole if meets else "none"), (seed, longest)
        said.add(plan.exact)
    assert "none" in said


@of_speeds
def test_rows_that_are_limited_are_exchanged_within_their_limits(speeds: FloatArray | None) -> None:
    gained, cost = [], CostModel("measured", beta=1.0, gamma=0.01)
    for seed in range(20):
        lengths = np.sort(heavy_tailed(16, seed, 400))[::-1]
        share = int(lengths.sum()) // 3
        tight = PackedCapacity.per_rank([share, int(0.8 * share), 3 * share])
        problem = problem_of(lengths, 3, layout="packed", cost=cost, capacity=tight, speeds=speeds)
        plan = first_plan("partition", problem)
        judge_plan(plan, problem, range(16))
        limits = tight.limits(3, lengths)
        work = Work(cost.per_sample(lengths), lengths, problem.relative_speeds(), np.zeros(3), limits)
        dealt = within_limits(work)
        assert dealt is not None
        gained.append(work.peak(dealt) / step_costs(plan, problem).max())
    assert min(gained) >= 1 - 1e-12 and np.mean(gained) > 1.002


@of_speeds
@of_costs
def test_several_rows_of_each_rank_are_nearly_as_good_as_can_be(cost: CostModel, speeds: FloatArray | None) -> None:
    """The bound is of one row per rank, so a rank's further rows, and squares that fall, are left out of it."""
    same = {"layout": "packed", "cost": replace(cost, further=0.0), "speeds": speeds, "micro_batches": 4}
    for seed in range(6):
        lengths = heavy_tailed(90, seed, 300)
        problem = problem_of(lengths, 3, **same)
        plan = first_plan("partition", problem)
        judge_plan(plan, problem, range(90))
        assert all(len(share) == 4 for share in plan.shares)
        sums = np.array([[problem.cost.per_sample(lengths[row]).sum() for row in share] for share in plan.shares])
        spent = sums.sum(axis=1) / problem.relative_speeds() ** (0.5 if cost.cost_type == "tokens_sq" else 1)
        assert spent.max() <= 1.01 * spent.mean()
        assert (sums.max(axis=1) <= 1.1 * sums.mean(axis=1)).all()

"""Plans of packed rows against all deals of a few samples, and what is done with several rows, by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan
from unit.schedule.test_packed import CAPACITIES

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy

COSTS = (
    CostModel("tokens", alpha=9.0),  # of a cost that was measured, and does not count here
    CostModel("tokens_sq", alpha=9.0),
    CostModel("attention", attention_a=0.03),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
)


def packed(lengths, workers, batch=None, **changes) -> Problem:
    lengths = np.asarray(lengths, dtype=np.int64)
    return Problem(lengths, workers, batch or len(lengths), **{"order": "file", "layout": "packed", **changes})


def first(problem: Problem) -> StepPlan:
    return next(make_policy("partition", problem).plans())


def rows(problem: Problem) -> list[list[list[int]]]:
    """Lengths per rank and row."""
    return [[problem.lengths[row].tolist() for row in share] for share in first(problem).shares]


def least(problem: Problem) -> float | None:
    """Least maximum of one row per rank over all deals that leave no rank idle; None where nothing fits."""
    deals = np.array(list(product(range(problem.workers), repeat=len(problem.lengths))))
    slowest, fits = np.zeros(len(deals)), np.ones(len(deals), dtype=bool)
    for rank, speed in enumerate(problem.relative_speeds()):
        mine = deals == rank
        tokens, squares = (mine * problem.lengths).sum(axis=1), (mine * problem.lengths**2).sum(axis=1)
        slowest = np.maximum(slowest, problem.cost.cost_packed(tokens, squares) / speed)
        longest = np.where(mine, problem.lengths, 0).max(axis=1)
        fits &= mine.any(axis=1) & (tokens <= problem.capacity.limits_of(rank, longest))
    return float(slowest[fits].min()) if fits.any() else None


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=7),
    cost=st.sampled_from(COSTS),
    capacity=st.sampled_from(CAPACITIES),
    speeds=st.sampled_from([None, (1.0, 2.0), (3.0, 1.0)]),
)
def test_two_ranks_are_dealt_as_well_as_can_be_and_it_is_said(lengths, cost, capacity, speeds):
    speed = None if speeds is None else np.array(speeds)
    problem = packed(lengths, 2, cost=cost, capacity=capacity, speeds=speed)
    best = least(problem)
    if best is None:
        with pytest.raises(NothingFits):
            first(problem)
        return
    plan = first(problem)
    judge_plan(plan, problem, range(len(lengths)))
    assert plan.exact == ("maximum" if cost.cost_type == "tokens_sq" else "both")
    assert step_costs(plan, problem).max() == pytest.approx(best, rel=1e-9)


def test_as_many_rows_as_needed_is_one_exact_row_where_one_holds_all():
    problem = packed([9, 8, 7, 6, 5], 2, capacity=PackedCapacity.uniform(40), micro_batches="auto")
    plan = first(problem)
    assert sorted(sum(row) for (row,) in rows(problem)) == [17, 18]
    assert (plan.exact, plan.packed) == ("both", True)


def test_the_sample_that_is_too_long_is_named_though_a_rank_holds_none():
    with pytest.raises(NothingFits, match="sample 1 of 50 tokens"):
        first(packed([5, 50, 4], 2, capacity=PackedCapacity.per_rank([30, 2])))


def test_there_may_be_as_many_rows_as_samples():
    problem = packed([4, 3, 2, 1], 2, micro_batches=2)
    assert first(problem).packed is True
    assert [[len(row) for row in share] for share in rows(problem)] == [[1, 1], [1, 1]]


def test_one_rank_fills_its_rows_to_the_last_token():
    problem = packed([12] * 6, 1, capacity=PackedCapacity.uniform(24), micro_batches="auto")
    assert rows(problem) == [[[12, 12]] * 3]


def test_rows_stand_longest_first():
    problem = packed(np.random.default_rng(0).integers(1, 90, 120), 3)
    for (row,) in rows(problem):
        assert row == sorted(row, reverse=True)

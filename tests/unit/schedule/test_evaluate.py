"""What plans cost, by hand, and bounds that no plan is below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import COSTS, judge_plan, problem_of

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import batch_bound, packed_bound, step_bound, step_costs, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem

LENGTHS = (3, 5, 2, 8, 4, 4)
PLAN = StepPlan(4, ((np.array([0, 1]), np.array([2])), (np.array([3, 4, 5]),)))


def test_facts_of_a_plan_by_hand():
    facts = step_facts(PLAN, problem_of(LENGTHS, speeds=np.array([1.0, 2.0])))
    assert facts.padded_tokens.tolist() == [12, 24]
    assert facts.real_tokens.tolist() == [10, 16]
    assert facts.local_batches.tolist() == [3, 3]
    assert facts.costs.tolist() == [12, 12]
    assert (facts.max_cost, facts.variance) == (12, 0)
    packed = replace(PLAN, packed=True)
    facts = step_facts(packed, problem_of(LENGTHS, cost=CostModel("attention", attention_a=1.0, pad_to_multiple_of=64)))
    assert facts.padded_tokens.tolist() == facts.real_tokens.tolist() == [10, 16]
    assert facts.costs.tolist() == [10 + 9 + 25 + 4, 16 + 64 + 16 + 16]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (CostModel("tokens_sq"), [104, 576]),
        (CostModel("attention", attention_a=0.5), [12 + 0.5 * (50 + 4), 24 + 0.5 * 192]),
        (CostModel("measured", alpha=7, beta=2, gamma=1), [14 + 24 + 54, 7 + 48 + 192]),
        (CostModel("tokens", pad_to_multiple_of=4), [16 + 4, 24]),
    ],
    ids=lambda given: getattr(given, "cost_type", None),
)
def test_micro_batches_are_priced_one_by_one(cost, expected):
    assert step_costs(PLAN, problem_of(LENGTHS, cost=cost)).tolist() == expected


def test_violations_are_counted_and_refused():
    problem = problem_of(LENGTHS, capacity=Capacity.per_rank([2, 2]))
    assert step_facts(PLAN, problem).capacity_violations == 1
    with pytest.raises(AssertionError, match="rank 1 runs 3 samples of at most 2"):
        judge_plan(PLAN, problem)
    judge_plan(PLAN, problem, capped=False)
    judge_plan(PLAN, replace(problem, capacity=Capacity.per_rank([2, 3])), range(6))


TOKENS, SQUARED = CostModel("tokens"), CostModel("tokens_sq")
PAID = CostModel("measured", alpha=10.0)
THIRDS = pytest.approx((16 / 3) ** 2)


@pytest.mark.parametrize(
    ("lengths", "cost", "workers", "changes", "bound"),
    [
        ([10, 3, 3, 3], TOKENS, 2, {}, 10),
        ([10, 3, 3, 3], TOKENS, 1, {}, 19),
        ([5, 5, 5], TOKENS, 2, {}, 8),
        ([5, 5, 5], SQUARED, 2, {}, 64),
        ([3, 4], SQUARED, 1, {}, 49),
        ([4, 4], CostModel("measured", alpha=2, beta=1, gamma=0.5), 2, {}, 2 + 4 + 8),
        ([50, 1], PAID, 2, {}, 60),
        ([7] * 12, CostModel("attention"), 3, {}, pytest.approx(4 * (7 + 0.049))),
        ([6, 6], TOKENS, 2, {"speeds": np.array([3.0, 1.0])}, 3),
        ([9, 1], SQUARED, 2, {"speeds": np.array([2.0, 2.0])}, 81 / 2),
        ([8, 8], SQUARED, 2, {"speeds": np.array([4.0, 1.0])}, THIRDS),
        ([9, 1, 1, 1], SQUARED, 4, {"micro_batches": 2}, 81),
        ([5, 5, 5, 5], SQUARED, 2, {"micro_batches": 4}, 100 / 2),  # one by one
        ([5] * 12, PAID, 2, {"micro_batches": 3}, 10 + 30),
        ([5] * 12, PAID, 2, {"micro_batches": 3, "limits": np.full(12, 2)}, 30 + 30),
        ([5] * 12, replace(PAID, further=4.0), 2, {"micro_batches": 3, "limits": np.full(12, 2)}, 10 + 2 * 4 + 30),
    ],
)
def test_bounds_of_padded_batches_by_hand(lengths, cost, workers, changes, bound):
    assert batch_bound(np.array(lengths), cost, workers, **changes) == bound


@pytest.mark.parametrize(
    ("lengths", "cost", "workers", "changes", "bound"),
    [
        ([6, 5, 5], TOKENS, 2, {}, 10),  # two of the three are on one rank
        ([6, 5, 5], SQUARED, 2, {}, 100),
        ([6, 5, 5], CostModel("tokens", alpha=3.0), 2, {}, 10),  # which only `measured` pays
        ([6, 5, 5], CostModel("measured", alpha=3.0), 2, {}, 13),
        ([6, 5, 5], TOKENS, 3, {}, 6),
        ([6, 5], TOKENS, 2, {}, 6),
        ([6, 5, 5], TOKENS, 2, {"speeds": np.array([2.0, 2.0])}, 5),
        ([6, 5, 5], TOKENS, 2, {"speeds": np.array([2.0, 1.0])}, 16 / 3),
        ([6, 4], TOKENS, 1, {"speeds": np.array([2.0])}, 5),
        ([6, 5, 5], SQUARED, 2, {"micro_batches": 2}, (36 + 25 + 25) / 2),  # a rank may run them one by one
        ([5] * 5, TOKENS, 2, {}, 15),  # three of the five are on one rank
        ([9, 4, 4, 4, 4], TOKENS, 2, {}, 13),  # the mean
        ([5] * 12, PAID, 2, {"micro_batches": 3, "limits": np.full(12, 10)}, 30 + 30),
    ],
)
def test_bounds_of_packed_rows_by_hand(lengths, cost, workers, changes, bound):
    assert packed_bound(np.array(lengths), cost, workers, **changes) == bound


@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=12),
    st.sampled_from(
        [
            *COSTS,
            CostModel("measured", alpha=3.0, beta=0.2, further=0.0, pad_to_multiple_of=8, positions=45),
            CostModel("measured", alpha=3.0, beta=0.2, further=9.0),
        ]
    ),
    st.sampled_from([None, np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0]), np.array([0.5, 1.0, 4.0])]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_no_random_plan_is_below_the_bound(lengths, cost, speeds, seed, packed):
    rng = np.random.default_rng(seed)
    problem = problem_of(lengths, 3, cost=cost, speeds=speeds)
    ids = rng.permutation(len(lengths))
    cuts = np.sort(rng.choice(np.arange(1, len(ids)), 2, replace=False))
    shares = tuple(tuple(np.array_split(part, rng.integers(1, len(part) + 1))) for part in np.split(ids, cuts))
    plan = StepPlan(0, shares, packed=packed)
    assert step_bound(plan, problem) <= step_costs(plan, problem).max() * (1 + 1e-12)


def test_the_bound_of_a_plan_by_hand():
    """Padded to 8, 4, 4, 4: three micro-batches at least, of which two pay 10 and one 3, or one each, which pay 10."""
    cost = CostModel("measured", alpha=10.0, further=3.0, pad_to_multiple_of=4)
    capacity = Capacity.table([[(4, 2), (8, 1)]])
    problem = Problem(np.array([8, 4, 4, 2]), 2, 4, cost=cost, capacity=capacity)
    first, rest = np.array([0]), np.array([1, 2, 3])
    split, whole = StepPlan(0, ((first,), (rest[:2], rest[2:]))), StepPlan(0, ((first,), (rest,)))
    assert step_bound(split, problem) == (10 + 10 + 3 + 20) / 2
    assert step_bound(whole, problem) == (10 + 10 + 20) / 2
    assert step_bound(split, replace(problem, capacity=Capacity())) == 20
    assert step_bound(split, replace(problem, speeds=np.array([2.0, 2.0]))) == 43 / 4
    tokens = replace(problem, cost=replace(cost, cost_type="tokens"), capacity=Capacity())
    assert step_bound(whole, tokens) == 10
    assert step_bound(replace(whole, packed=True), tokens) == 9, "which is not padded"
    alike = StepPlan(0, ((np.array([0, 1]),), (np.array([2]),)), packed=True)
    assert step_bound(alike, problem_of([5, 5, 5])) == 10, "two of the three are on one rank"
    squares = replace(tokens, cost=replace(cost, cost_type="tokens_sq"))
    assert (step_bound(whole, squares), step_bound(split, squares)) == (100, 64)

"""What plans cost, by hand, and bounds that no plan is below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import PlanError, judge_plan

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import batch_bound, packed_bound, step_bound, step_costs, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem

LENGTHS = np.array([3, 5, 2, 8, 4, 4])
PLAN = StepPlan(4, ((np.array([0, 1]), np.array([2])), (np.array([3, 4, 5]),)))


def problem_of(**changes) -> Problem:
    return Problem(**({"lengths": LENGTHS, "workers": 2, "global_batch": 6} | changes))


def test_facts_of_a_plan_by_hand():
    facts = step_facts(PLAN, problem_of(speeds=np.array([1.0, 2.0])))
    assert facts.padded_tokens.tolist() == [12, 24]
    assert facts.real_tokens.tolist() == [10, 16]
    assert facts.local_batches.tolist() == [3, 3]
    assert facts.costs.tolist() == [12, 12]
    assert (facts.max_cost, facts.variance) == (12, 0)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (CostModel("tokens_sq"), [104, 576]),
        (CostModel("attention", attention_a=0.5), [12 + 0.5 * (50 + 4), 24 + 0.5 * 192]),
        (CostModel("measured", alpha=7, beta=2, gamma=1), [14 + 24 + 54, 7 + 48 + 192]),
        (CostModel("tokens", pad_to_multiple_of=4), [16 + 4, 24]),
    ],
)
def test_micro_batches_are_priced_one_by_one(cost, expected):
    assert step_costs(PLAN, problem_of(cost=cost)).tolist() == expected


def test_a_packed_plan_is_not_padded():
    plan = StepPlan(0, PLAN.shares, packed=True)
    facts = step_facts(plan, problem_of(cost=CostModel("attention", attention_a=1.0, pad_to_multiple_of=64)))
    assert facts.padded_tokens.tolist() == facts.real_tokens.tolist() == [10, 16]
    assert facts.costs.tolist() == [10 + 9 + 25 + 4, 16 + 64 + 16 + 16]


def test_violations_are_counted_and_refused():
    problem = problem_of(capacity=Capacity.per_rank([2, 2]))
    assert step_facts(PLAN, problem).capacity_violations == 1
    with pytest.raises(PlanError, match="step 4: rank 1 runs 3 samples at length 8, its capacity is 2"):
        judge_plan(PLAN, problem)
    judge_plan(PLAN, problem, capped=False)
    judge_plan(PLAN, problem_of(capacity=Capacity.per_rank([2, 3])), range(6))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([[0, 1, 2, 3, 4, 5]], "1 shares for 2 ranks"),
        ([[0, 1, 2, 3, 4, 5], []], "rank 1 has an empty"),
        ([[0, 1, 2], [3, 4]], "5 samples, not 6"),
        ([[0, 1, 2], [3, 4, 6]], "outside 0..5"),
        ([[0, 1, 2], [3, 4, 4]], "not the expected ones"),
    ],
)
def test_broken_rules_are_named(shares, message):
    plan = StepPlan(0, tuple((np.array(ids, dtype=np.int64),) for ids in shares))
    with pytest.raises(PlanError, match=message):
        judge_plan(plan, problem_of(), range(6))


def test_a_varying_batch_is_allowed_when_said():
    plan = StepPlan(0, ((np.array([0, 1]),), (np.array([2]),)))
    judge_plan(plan, problem_of(), fixed_batch=False)
    with pytest.raises(PlanError):
        judge_plan(plan, problem_of())


COSTS = st.sampled_from(
    [
        CostModel("tokens"),
        CostModel("tokens", pad_to_multiple_of=8),
        CostModel("tokens_sq"),
        CostModel("attention", attention_a=0.05),
        CostModel("measured", alpha=3.0, beta=0.2, gamma=0.001),
        CostModel("measured", alpha=3.0, beta=0.2, further=0.0, pad_to_multiple_of=8, positions=45),
        CostModel("measured", alpha=3.0, beta=0.2, further=9.0),
    ]
)


def test_known_values():
    lengths = np.array([10, 3, 3, 3])
    assert batch_bound(lengths, CostModel("tokens"), 2) == 10
    assert batch_bound(lengths, CostModel("tokens"), 1) == 19
    assert batch_bound(np.array([5, 5, 5]), CostModel("tokens"), 2) == 8
    assert batch_bound(np.array([5, 5, 5]), CostModel("tokens_sq"), 2) == 64
    assert batch_bound(np.array([4, 4]), CostModel("measured", alpha=2, beta=1, gamma=0.5), 2) == 2 + 4 + 8
    assert batch_bound(np.array([6, 6]), CostModel("tokens"), 2, speeds=np.array([3.0, 1.0])) == 3


def test_known_values_of_packed_rows():
    tokens, squared, three = CostModel("tokens"), CostModel("tokens_sq"), np.array([6, 5, 5])
    assert packed_bound(three, tokens, 2) == 10, "two of the three are on one rank"
    assert packed_bound(three, squared, 2) == 100
    assert packed_bound(three, CostModel("tokens", alpha=3.0), 2) == 10, "which only `measured` pays"
    assert packed_bound(three, CostModel("measured", alpha=3.0), 2) == 13
    assert packed_bound(three, tokens, 3) == packed_bound(three[:2], tokens, 2) == 6
    assert packed_bound(three, tokens, 2, speeds=np.array([2.0, 2.0])) == 5
    assert packed_bound(three, tokens, 2, speeds=np.array([2.0, 1.0])) == 16 / 3
    assert packed_bound(three, squared, 2, micro_batches=2) == (36 + 25 + 25) / 2, "a rank may run them one by one"
    assert packed_bound(np.full(5, 5), tokens, 2) == 15, "three of the five are on one rank"
    assert packed_bound(np.array([9, 4, 4, 4, 4]), tokens, 2) == 13, "the mean"
    paid = CostModel("measured", alpha=10.0)
    assert packed_bound(np.full(12, 5), paid, 2, micro_batches=3, limits=np.full(12, 10)) == 30 + 30


def test_known_values_of_squares():
    squared = CostModel("tokens_sq")
    assert batch_bound(np.array([9, 1]), squared, 2, speeds=np.array([2.0, 2.0])) == 81 / 2, "the longest"
    assert batch_bound(np.array([8, 8]), squared, 2, speeds=np.array([4.0, 1.0])) == pytest.approx((16 / 3) ** 2)
    assert batch_bound(np.array([9, 1, 1, 1]), squared, 4, micro_batches=2) == 81
    assert batch_bound(np.array([5, 5, 5, 5]), squared, 2, micro_batches=4) == 100 / 2, "one by one"


@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=12).map(np.array),
    COSTS,
    st.sampled_from([None, np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0]), np.array([0.5, 1.0, 4.0])]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_no_random_plan_is_below_the_bound(lengths, cost, speeds, seed, packed):
    rng = np.random.default_rng(seed)
    problem = Problem(lengths, 3, len(lengths), cost=cost, speeds=speeds)
    ids = rng.permutation(len(lengths))
    cuts = np.sort(rng.choice(np.arange(1, len(ids)), 2, replace=False))
    shares = tuple(tuple(np.array_split(part, rng.integers(1, len(part) + 1))) for part in np.split(ids, cuts))
    plan = StepPlan(0, shares, packed=packed)
    assert step_bound(plan, problem) <= step_costs(plan, problem).max() * (1 + 1e-12)


@pytest.mark.parametrize("cost_type", ["tokens", "tokens_sq", "attention", "measured"])
def test_equal_lengths_that_divide_evenly_reach_the_bound(cost_type):
    problem = Problem(np.full(12, 7), 3, 12, cost=CostModel(cost_type, alpha=1.5))
    plan = StepPlan(0, tuple((part,) for part in np.arange(12).reshape(3, 4)))
    assert step_bound(plan, problem) == pytest.approx(step_costs(plan, problem).max(), rel=1e-12)


def test_capacities_count_the_micro_batches_that_alpha_is_paid_for():
    cost = CostModel("measured", alpha=10.0, beta=1.0)
    lengths = np.full(12, 5)
    assert batch_bound(lengths, cost, 2, micro_batches=3) == 10 + 30
    assert batch_bound(lengths, cost, 2, micro_batches=3, limits=np.full(12, 2)) == 30 + 30
    priced = replace(cost, further=4.0)
    assert batch_bound(lengths, priced, 2, micro_batches=3, limits=np.full(12, 2)) == 10 + 2 * 4 + 30


def test_the_longest_sample_is_on_some_rank():
    assert batch_bound(np.array([50, 1]), CostModel("measured", alpha=10.0), 2) == 60
    assert batch_bound(np.array([3, 4]), CostModel("tokens_sq"), 1) == 49
    assert packed_bound(np.array([6, 4]), CostModel(), 1, speeds=np.array([2.0])) == 5


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
    assert step_bound(alike, Problem(np.full(3, 5), 2, 3)) == 10, "two of the three are on one rank"
    squares = replace(tokens, cost=replace(cost, cost_type="tokens_sq"))
    assert (step_bound(whole, squares), step_bound(split, squares)) == (100, 64)

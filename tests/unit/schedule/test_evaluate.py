import numpy as np
import pytest
from plan_rules import PlanError, judge_plan

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
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
    assert (facts.max_cost, facts.variance, facts.mean_length) == (12, 0, 26 / 6)


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

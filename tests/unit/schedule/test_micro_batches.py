import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import judge_plan

from dynbench.schedule import micro_batches
from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.partition import Partition
from dynbench.schedule.policy import Problem

RNG_LENGTHS = np.clip(np.random.default_rng(3).lognormal(3.5, 0.8, 256).astype(int), 2, 256)


def solve(lengths=RNG_LENGTHS, workers=4, **changes):
    problem = Problem(lengths, workers, len(lengths), order="file", **changes)
    ids = np.arange(len(lengths))
    plan = Partition(problem).deal([ids], 0)[0]
    judge_plan(plan, problem, ids)
    facts = step_facts(plan, problem)
    assert facts.bound <= facts.max_cost * (1 + 1e-12)
    return plan, facts


def measured(alpha: float, further: float | None = None) -> CostModel:
    return CostModel("measured", alpha=alpha, beta=0.01, gamma=1e-5, further=further)


@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_fixed_number_is_what_every_rank_runs(number):
    plan, _ = solve(micro_batches=number)
    assert {len(share) for share in plan.shares} == {number}
    assert plan.exact == "none"


def test_auto_without_alpha_is_one_micro_batch_where_they_fit():
    auto, single = solve(micro_batches="auto")[0], solve()[0]
    assert [[ids.tolist() for ids in share] for share in auto.shares] == [
        [ids.tolist() for ids in share] for share in single.shares
    ]
    assert auto.exact == single.exact


def test_with_a_measured_cost_the_number_falls_as_alpha_rises():
    numbers = []
    for alpha in (0.0, 0.5, 5.0, 1e4):
        plan, facts = solve(micro_batches="auto", cost=measured(alpha))
        numbers.append(sum(len(share) for share in plan.shares))
        assert facts.max_cost <= solve(cost=measured(alpha))[1].max_cost * (1 + 1e-12)
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 8
    assert numbers[-1] == 4


@given(st.lists(st.integers(1, 60), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_capacity_splits_a_share_instead_of_failing(lengths, workers, most):
    capacity = Capacity.table([[(20, most + 3), (60, most)]])
    plan, facts = solve(np.array(lengths), workers, micro_batches="auto", capacity=capacity)
    assert facts.capacity_violations == 0
    assert all(len(ids) <= most + 3 for share in plan.shares for ids in share)


def test_longest_first_is_within_its_known_ratio_of_the_mean():
    costs = np.random.default_rng(0).random(30)
    largest, dealt = deal_longest_first(costs, 4)
    assert sorted(job for jobs in dealt for job in jobs) == list(range(30))
    assert largest == pytest.approx(max(costs[jobs].sum() for jobs in dealt))
    assert largest <= 4 / 3 * max(costs.max(), costs.sum() / 4)


ONE_SLOW = np.array([1.0, 1.0, 1.0, 0.5])


def test_to_first_finish_is_within_twice_the_mean_and_leaves_nobody_idle():
    costs = np.random.default_rng(0).random(30)
    slowest, dealt = deal_to_first_finish(costs, ONE_SLOW)
    assert sorted(job for jobs in dealt for job in jobs) == list(range(30))
    assert slowest == pytest.approx(max(costs[jobs].sum() / speed for jobs, speed in zip(dealt, ONE_SLOW, strict=True)))
    assert slowest <= 2 * max(costs.max(), costs.sum() / 3.5)
    assert all(deal_to_first_finish(np.ones(4), np.array([9.0, 1.0, 1.0, 0.01]))[1])


def test_a_slow_rank_gets_less_work_and_micro_batches_bring_the_step_near_its_bound():
    one, four = (solve(RNG_LENGTHS[:64], speeds=ONE_SLOW, micro_batches=number)[1] for number in (1, 4))
    assert four.max_cost < 1.1 * four.bound < one.max_cost
    assert four.padded_tokens[3] < 0.65 * four.padded_tokens[:3].min()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 5.0, 1e4])
def test_auto_on_unequal_ranks_is_no_worse_than_one_micro_batch_each(alpha):
    auto = solve(speeds=ONE_SLOW, micro_batches="auto", cost=measured(alpha))[1]
    assert auto.max_cost <= solve(speeds=ONE_SLOW, cost=measured(alpha))[1].max_cost * (1 + 1e-12)


def test_the_search_ends_when_the_last_numbers_gained_less_than_a_hundredth_together():
    falling = [100.0, 90, 80, 60, 59.9, 59.8, 59.7, 59.5]
    assert micro_batches._gains_little(falling)
    assert not micro_batches._gains_little(falling[1:]), "too few were tried"
    assert not micro_batches._gains_little([*falling[:-1], 59.3])
    assert not micro_batches._gains_little([100.0] * 3 + [80.0] + [79.9] * 3 + [70.0])
    assert not micro_batches._gains_little([100.0] * 7 + [99.0]), "a hundredth is not less"

"""How many micro-batches each rank runs, and how they are dealt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import first_plan, judge_plan, plain, problem_of

from dynbench.schedule import micro_batches
from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.evaluate import step_facts

LENGTHS = np.clip(np.random.default_rng(3).lognormal(3.5, 0.8, 256).astype(int), 2, 256)
ONE_SLOW = np.array([1.0, 1.0, 1.0, 0.5])


def solve(lengths=LENGTHS, workers=4, **changes):
    problem = problem_of(lengths, workers, **changes)
    plan = first_plan("partition", problem)
    judge_plan(plan, problem, range(len(lengths)))
    facts = step_facts(plan, problem)
    assert facts.bound <= facts.max_cost * (1 + 1e-12)
    return plan, facts


@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_fixed_number_is_what_every_rank_runs(number):
    plan, _ = solve(micro_batches=number)
    assert {len(share) for share in plan.shares} == {number}
    assert plan.exact == "none"


def test_auto_without_alpha_is_one_micro_batch_where_they_fit():
    (auto, _), (single, _) = solve(micro_batches="auto"), solve()
    assert (plain(auto), auto.exact) == (plain(single), single.exact)


@given(st.lists(st.integers(1, 60), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_capacity_splits_a_share_instead_of_failing(lengths, workers, most):
    capacity = Capacity.table([[(20, most + 3), (60, most)]])
    _, facts = solve(lengths, workers, micro_batches="auto", capacity=capacity)
    assert facts.capacity_violations == 0


@pytest.mark.parametrize("speeds", [np.ones(4), ONE_SLOW], ids=["longest first", "to first finish"])
def test_jobs_are_dealt_within_the_known_ratio_of_the_mean(speeds):
    costs, alike = np.random.default_rng(0).random(30), speeds.min() == 1
    slowest, dealt = deal_longest_first(costs, 4) if alike else deal_to_first_finish(costs, speeds)
    assert sorted(job for jobs in dealt for job in jobs) == list(range(30))
    assert slowest == pytest.approx(max(costs[jobs].sum() / speed for jobs, speed in zip(dealt, speeds, strict=True)))
    assert slowest <= (4 / 3 if alike else 2) * max(costs.max(), costs.sum() / speeds.sum())


def test_to_first_finish_leaves_nobody_idle():
    assert all(deal_to_first_finish(np.ones(4), np.array([9.0, 1.0, 1.0, 0.01]))[1])


FALLING = [100.0, 90, 80, 60, 59.9, 59.8, 59.7, 59.5]


@pytest.mark.parametrize(
    ("lasts", "ends"),
    [
        (FALLING, True),
        (FALLING[1:], False),  # too few were tried
        ([*FALLING[:-1], 59.3], False),
        ([100.0] * 3 + [80.0] + [79.9] * 3 + [70.0], False),
        ([100.0] * 7 + [99.0], False),  # a hundredth is not less
    ],
)
def test_the_search_ends_when_the_last_numbers_gained_less_than_a_hundredth_together(lasts, ends):
    assert micro_batches._gains_little(lasts) == ends

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.accumulation import SortedStep
from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.micro_batches import WORTH, MicroBatchPlanner
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


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_auto_is_near_its_bound_where_alpha_is_small(alpha):
    _, facts = solve(micro_batches="auto", cost=measured(alpha))
    fixed = min(solve(micro_batches=number, cost=measured(alpha))[1].max_cost for number in range(1, 9))
    assert facts.max_cost <= fixed * (1 + 1e-12)


@given(st.lists(st.integers(1, 60), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_capacity_splits_a_share_instead_of_failing(lengths, workers, most):
    capacity = Capacity.table([[(20, most + 3), (60, most)]])
    plan, facts = solve(np.array(lengths), workers, micro_batches="auto", capacity=capacity)
    assert facts.capacity_violations == 0
    assert all(len(ids) <= most + 3 for share in plan.shares for ids in share)


def test_too_little_capacity_for_a_fixed_number_names_the_largest_batch():
    with pytest.raises(NothingFits) as caught:
        solve(np.full(20, 5), 2, micro_batches=2, capacity=Capacity.uniform(4))
    assert "Of this step's samples 16 fit" in caught.value.hint


def test_a_sample_beyond_capacity_cannot_be_split():
    with pytest.raises(NothingFits, match="sample 3 of 50"):
        solve(np.array([5, 6, 7, 50]), 2, micro_batches="auto", capacity=Capacity.table([[(40, 4)]]))


def test_more_micro_batches_than_samples_are_refused():
    with pytest.raises(UsageError) as caught:
        solve(np.full(6, 5), 2, micro_batches=4)
    assert caught.value.hint == "Use at most 3, or a train.global_batch of at least 8."


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


PRICES = st.sampled_from([(0.0, None), (0.3, None), (0.3, 0.0), (0.3, 1.0), (0.0, 0.4), (20.0, 1.0)])


@st.composite
def choices(draw, most_samples: int) -> MicroBatchPlanner:
    """Planners that choose the number of micro-batches, for equal and unequal ranks, with and without capacities."""
    workers = draw(st.integers(1, 4))
    lengths = np.array(draw(st.lists(st.integers(1, 200), min_size=workers, max_size=most_samples)))
    capacities = [Capacity(), Capacity.uniform(3), Capacity.table([[(60, 7), (200, 2)]])]
    problem = Problem(
        lengths,
        workers,
        len(lengths),
        cost=measured(*draw(PRICES)),
        capacity=draw(st.sampled_from(capacities)),
        speeds=draw(st.sampled_from([None, ONE_SLOW[-workers:]])),
        micro_batches="auto",
    )
    return MicroBatchPlanner(problem)


@pytest.mark.slow
@settings(max_examples=60)
@given(choices(most_samples=24))
def test_auto_is_the_best_of_all_numbers_and_tries_none_twice(planner):
    problem = planner._problem
    lengths = np.sort(problem.padded_lengths)[::-1]
    limits, deal_, tried = planner._limits(lengths), planner._deal, []
    samples = SortedStep(planner._problem.cost, lengths, limits)
    fewest = max(problem.workers, -(-int((1 / limits).sum() - 1e-9) // 1))
    best = np.inf
    for number in range(fewest, len(lengths) + 1):
        try:
            best = min(best, deal_(number, samples)[0])
        except (AssertionError, NothingFits):  # fewer than the capacities need
            assert best == np.inf
    planner._deal = lambda number, *rest: tried.append(number) or deal_(number, *rest)
    found = planner._best(samples)[0]
    assert len(tried) == len(set(tried))
    assert best <= found <= best / (1 - WORTH)


@pytest.mark.parametrize("speeds", [None, [1.0, 0.5]])
@pytest.mark.parametrize(("batch", "further"), [(1024, None), (2048, 0.01)])
def test_for_a_large_batch_auto_stops_when_further_numbers_gain_little(batch, further, speeds):
    lengths = np.sort(np.clip(np.random.default_rng(3).lognormal(3.5, 0.8, batch).astype(int), 2, 256))[::-1]
    changes = {"cost": measured(0.1, further), "speeds": None if speeds is None else np.array(speeds)}
    planner = MicroBatchPlanner(Problem(lengths, 2, batch, micro_batches="auto", **changes))
    limits, deal_, tried = planner._limits(lengths), planner._deal, []
    samples = SortedStep(planner._problem.cost, lengths, limits)
    planner._deal = lambda number, *rest: tried.append(number) or deal_(number, *rest)
    found = planner._best(samples)[0]
    assert 8 <= len(tried) <= 32
    assert found <= 1.05 * min(deal_(number, samples)[0] for number in range(2, 128, 9))


@settings(max_examples=60)
@given(choices(most_samples=5))
def test_no_plan_at_all_is_below_the_bound_that_ends_the_search(planner):
    problem, cost = planner._problem, planner._problem.cost
    lengths = np.sort(problem.padded_lengths)[::-1]
    size, ranks, limits = len(lengths), problem.workers, planner._limits(lengths)
    speeds = 1 if planner._speeds is None else planner._speeds
    least = np.full(size + 1, np.inf)
    for group_of in product(range(size), repeat=size):  # each sample's micro-batch; numbered as they first appear
        if any(group > max(group_of[:place], default=-1) + 1 for place, group in enumerate(group_of)):
            continue
        groups = [[i for i in range(size) if group_of[i] == group] for group in range(max(group_of) + 1)]
        if len(groups) < ranks or any(len(ids) > limits[ids[0]] for ids in groups):
            continue
        costs = np.array([float(cost.cost_padded(len(ids), lengths[ids[0]])) for ids in groups])
        for rank_of in product(range(ranks), repeat=len(groups)):
            if len(set(rank_of)) == ranks:
                number = np.bincount(rank_of)
                times = cost.of_rank(np.bincount(rank_of, costs), number) / speeds
                least[len(groups)] = min(least[len(groups)], times.max())
    numbers = np.arange(ranks, size + 1)
    bounds = planner._bounds(numbers, SortedStep(cost, lengths, limits))
    assert (bounds <= least[numbers] * (1 + 1e-9)).all()


@pytest.mark.parametrize("speeds", [None, ONE_SLOW])
def test_a_measured_price_of_further_micro_batches_decides_how_many_there_are(speeds):
    lengths = RNG_LENGTHS[:48]
    one, two = (solve(lengths, speeds=speeds, cost=measured(0.5, 0.0), micro_batches=n)[1] for n in (1, 2))
    gain = one.max_cost - two.max_cost
    assert gain > 0
    for price, fewer in ((0.5 * gain, False), (50 * gain, True)):
        plan, facts = solve(lengths, speeds=speeds, cost=measured(0.5, price), micro_batches="auto")
        assert (sum(map(len, plan.shares)) == 4) is fewer
        by_hand = [
            (
                sum(0.5 + (0.01 + 1e-5 * lengths[ids].max()) * len(ids) * lengths[ids].max() for ids in share)
                + (len(share) - 1) * (price - 0.5)
            )
            for share in plan.shares
        ]
        np.testing.assert_allclose(facts.costs, np.array(by_hand) / (1 if speeds is None else speeds))


def test_without_a_measured_price_a_further_micro_batch_costs_alpha():
    for cost_type in ("tokens", "tokens_sq", "attention", "measured"):
        assert CostModel(cost_type, alpha=3.0).surcharge == 0
        assert CostModel(cost_type, alpha=3.0, further=5.0).surcharge == (2 if cost_type == "measured" else 0)

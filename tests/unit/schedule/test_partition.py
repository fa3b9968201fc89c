"""`partition` against brute force over all assignments of samples to ranks."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.partition import Partition
from dynbench.schedule.partition_search import least_maximum, sort_longest_first
from dynbench.schedule.policy import Problem

COSTS = st.sampled_from(
    [
        CostModel("tokens"),
        CostModel("tokens", pad_to_multiple_of=4),
        CostModel("tokens_sq"),
        CostModel("attention", attention_a=0.03),
        CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
        CostModel("measured", alpha=1.0, beta=0.0, gamma=0.0),
    ]
)
LENGTHS = st.lists(st.integers(1, 30), min_size=3, max_size=7).map(np.array)


@cache
def assignments(samples: int, ranks: int) -> np.ndarray:
    """Every way to give each sample a rank without leaving one idle, shape [ways, samples]."""
    ways = np.array(list(product(range(ranks), repeat=samples)))
    return ways[[len(set(way)) == ranks for way in ways.tolist()]]


def brute_force(problem: Problem) -> tuple[float, float] | None:
    """Least maximum over ranks and, at it, the least total; None when nothing fits."""
    ways = assignments(len(problem.lengths), problem.workers)
    costs = np.zeros((len(ways), problem.workers))
    fits = np.ones(len(ways), dtype=bool)
    for rank in range(problem.workers):
        mine = ways == rank
        counts, longest = mine.sum(axis=1), np.where(mine, problem.padded_lengths, 0).max(axis=1)
        costs[:, rank] = problem.cost.cost_padded(counts, longest) / problem.relative_speeds()[rank]
        fits &= counts <= problem.capacity.limits_of(rank, longest)
    if not fits.any():
        return None
    slowest = costs[fits].max(axis=1)
    return slowest.min(), costs[fits][slowest <= slowest.min() * (1 + 1e-12)].sum(axis=1).min()


def problem_of(lengths, workers, **changes) -> Problem:
    return Problem(lengths, workers, len(lengths), order="file", **changes)


def solve(problem: Problem):
    """The plan of the whole data as one global batch, its rules checked."""
    ids = np.arange(len(problem.lengths))
    plan = Partition(problem).deal([ids], 0)[0]
    judge_plan(plan, problem, ids)
    return plan


def judge(problem: Problem, exact) -> None:
    """The plan is as good as brute force's, or both find that nothing fits."""
    best = brute_force(problem)
    if best is None:
        with pytest.raises(NothingFits):
            solve(problem)
        return
    plan = solve(problem)
    costs = step_costs(plan, problem)
    assert plan.exact == exact
    assert costs.max() == pytest.approx(best[0], rel=1e-12)
    assert step_facts(plan, problem).bound <= costs.max() * (1 + 1e-12)
    if exact == "both":
        assert costs.sum() == pytest.approx(best[1], rel=1e-12)


@pytest.mark.slow
@settings(max_examples=600)
@given(LENGTHS, st.integers(1, 3), COSTS)
def test_equal_ranks_are_exact_in_maximum_and_total(lengths, workers, cost):
    judge(problem_of(lengths, workers, cost=cost), "both")


TABLES = st.lists(st.tuples(st.sampled_from([4, 8, 12, 20, 32]), st.integers(1, 4)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=600)
@given(LENGTHS, st.integers(2, 3), COSTS, TABLES)
def test_equal_ranks_with_capacities_by_length_are_exact(lengths, workers, cost, table):
    judge(problem_of(lengths, workers, cost=cost, capacity=Capacity.table([table])), "both")


SPEEDS = st.lists(st.sampled_from([0.5, 1.0, 1.3, 3.0]), min_size=3, max_size=3).map(np.array)


@pytest.mark.slow
@settings(max_examples=600)
@given(LENGTHS, COSTS, SPEEDS)
def test_ranks_of_unequal_speed_are_exact_in_the_maximum(lengths, cost, speeds):
    problem = problem_of(lengths, 3, cost=cost, speeds=speeds)
    judge(problem, "both" if problem.equal_ranks else "maximum")


@pytest.mark.slow
@settings(max_examples=600)
@given(LENGTHS, COSTS, SPEEDS, st.lists(TABLES, min_size=3, max_size=3))
def test_ranks_of_unequal_capacity_are_exact_in_the_maximum(lengths, cost, speeds, tables):
    problem = problem_of(lengths, 3, cost=cost, speeds=speeds, capacity=Capacity.table(tables))
    judge(problem, "both" if problem.equal_ranks else "maximum")


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40), COSTS, st.booleans())
def test_large_batches_agree_with_a_search_over_every_candidate_cost(seed, workers, cost, capped):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(int), 1, 500)
    weights = np.sort(cost.per_sample(cost.padded(lengths)))[::-1]
    limits = np.sort(rng.integers(4, 20, len(weights))) if capped else None
    counts = least_maximum(weights, workers, limits)

    def reaches_end(threshold):
        start = 0
        for _ in range(workers):
            allowed = np.arange(1, len(weights) + 1) * weights[start] <= threshold
            if limits is not None:
                allowed &= np.arange(1, len(weights) + 1) <= limits[start]
            start += int(np.count_nonzero(allowed))
            if start >= len(weights):
                return True
        return False

    candidates = np.unique(np.arange(1, len(weights) + 1)[:, None] * weights)
    if counts is None:
        assert not reaches_end(np.inf)
        return
    assert sum(counts) == len(weights)
    assert min(counts) >= 1
    peak = max(n * weights[s] for n, s in zip(counts, np.cumsum([0, *counts[:-1]]), strict=True))
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches_end(candidates[middle]) else (middle + 1, high)
    assert peak == candidates[low]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_sorting_is_stable(lengths):
    assert sort_longest_first(np.array(lengths)).tolist() == sorted(range(len(lengths)), key=lambda i: -lengths[i])


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2_000, pytest.param(10_000, marks=pytest.mark.matrix)])
def test_no_capacity_is_ever_exceeded_where_an_uncapped_balancer_exceeds_it(steps):
    rng = np.random.default_rng(0)
    table, workers, batch = [(32, 24), (64, 12), (128, 6), (512, 1)], 4, 32
    capacity = Capacity.table([table])
    lengths = np.clip(rng.lognormal(3, 1.0, steps * batch).astype(int), 2, 512)
    capped = Problem(lengths, workers, batch, capacity=capacity, order="file", micro_batches="auto")
    uncapped = Problem(lengths, workers, batch, order="file")
    batches = list(capped.data_order().epoch_batches(0))
    within, beyond = (
        sum(step_facts(plan, capped).capacity_violations for plan in Partition(problem).deal(batches, 0))
        for problem in (capped, uncapped)
    )
    assert within == 0 and beyond > steps / 100

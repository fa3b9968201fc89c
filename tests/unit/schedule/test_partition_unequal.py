"""Ranks that differ, against every order of them and every split of few samples."""

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.partition_unequal import UnequalRanks
from dynbench.schedule.policy import Problem

COSTS = [CostModel("tokens"), CostModel("tokens_sq"), CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01)]


def drawn(seed: int, ranks: int) -> Problem:
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 40, ranks + int(rng.integers(0, 5))))[::-1].copy()
    rows = [[(20, int(rng.integers(2, 6))), (40, int(rng.integers(1, 4)))] for _ in range(ranks)]
    return Problem(
        lengths,
        ranks,
        len(lengths),
        cost=COSTS[seed % len(COSTS)],
        capacity=Capacity.table(rows) if seed % 2 else Capacity(),
        speeds=rng.choice([1.0, 2.0, 5.0], ranks) * rng.choice([0.3, 3.0]),
    )


def least(problem: Problem, order: tuple[int, ...]) -> float:
    """Least maximum where the ranks take the sorted samples in this order; infinite where nothing fits."""
    lengths, best = problem.lengths, np.inf
    for cuts in combinations(range(1, len(lengths)), problem.workers - 1):
        slowest = 0.0
        for rank, (start, end) in zip(order, pairwise([0, *cuts, len(lengths)]), strict=True):
            if end - start > problem.capacity.limit(rank, int(lengths[start])):
                slowest = np.inf
                break
            cost = float(problem.cost.cost_padded(end - start, lengths[start]))
            slowest = max(slowest, cost / problem.relative_speeds()[rank])
        best = min(best, slowest)
    return best


def dealt(problem: Problem) -> tuple[float, str] | None:
    """The slowest rank's time and what is proven; None where nothing fits."""
    lengths = problem.lengths
    try:
        groups, exact = UnequalRanks(problem).groups(np.arange(len(lengths)), lengths, 0)
    except NothingFits:
        return None
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for rank, ids in enumerate(groups):
        assert 1 <= len(ids) <= problem.capacity.limit(rank, int(lengths[ids[0]]))
    times = [float(problem.cost.cost_padded(len(ids), lengths[ids[0]])) for ids in groups]
    return max(np.array(times) / problem.relative_speeds()), exact


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 3))
def test_the_least_maximum_is_that_of_all_orders(seed, ranks):
    problem = drawn(seed, ranks)
    best = min(least(problem, order) for order in permutations(range(ranks)))
    found = dealt(problem)
    assert found is None if best == np.inf else found == (pytest.approx(best), "maximum")


def test_of_several_ranks_that_hold_nothing_the_fastest_is_named():
    short, long = [(8, 4)], [(20, 4)]
    speeds = np.array([1.0, 2.0, 3.0])
    problem = Problem(np.array([15, 12, 9]), 3, 3, capacity=Capacity.table([short, short, long]), speeds=speeds)
    with pytest.raises(NothingFits, match="sample 2 of 9 padded tokens is longer than the capacity of rank 1 allows"):
        UnequalRanks(problem).groups(np.arange(3), problem.lengths, 0)

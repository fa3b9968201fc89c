"""How many micro-batches are tried, and which cuts of the sorted batch, by hand."""

import numpy as np
import pytest

from dynbench.schedule import micro_batches
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.micro_batches import MicroBatchPlanner
from dynbench.schedule.policy import Problem


def planner(lengths, workers=2, **changes) -> MicroBatchPlanner:
    lengths = np.asarray(lengths)
    return MicroBatchPlanner(Problem(lengths, workers, len(lengths), **{"micro_batches": "auto", **changes}))


@pytest.mark.parametrize(
    ("limits", "parts"), [([2, 2, 3, 3, 9], 2), ([1, 1, 1], 3), ([9, 9, 9], 1), ([1, 2, 2, 2], 3), ([3, 3, 3, 1], 2)]
)
def test_the_fewest_that_hold_all(limits, parts):
    assert micro_batches._parts_needed(np.array(limits)) == parts


def test_the_search_ends_when_the_last_numbers_gained_less_than_a_hundredth_together():
    falling = [100.0, 90, 80, 60, 59.9, 59.8, 59.7, 59.5]
    assert micro_batches._gains_little(falling)
    assert not micro_batches._gains_little(falling[1:]), "too few were tried"
    assert not micro_batches._gains_little([*falling[:-1], 59.3])
    assert not micro_batches._gains_little([100.0] * 3 + [80.0] + [79.9] * 3 + [70.0])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, False),
        ({"capacity": Capacity.uniform(3)}, False),
        ({"capacity": Capacity.uniform(2)}, True),
        ({"cost": CostModel("measured")}, True),
        ({"micro_batches": 2}, True),
    ],
)
def test_where_one_each_is_all_that_auto_means(changes, wanted):
    assert planner([9, 8, 7, 3, 2, 1], **changes).wanted(np.array([9, 8, 7, 3, 2, 1])) is wanted


def tried(planner: MicroBatchPlanner, lengths: np.ndarray) -> list[int]:
    """Numbers of micro-batches that are weighed."""
    numbers: list[int] = []
    deal = planner._deal
    planner._deal = lambda number, *rest: numbers.append(number) or deal(number, *rest)
    planner._best(lengths, planner._limits(lengths))
    return numbers


def test_without_a_price_the_fewest_and_the_next_multiple_of_the_ranks_are_weighed():
    lengths = np.arange(12, 0, -1)
    assert tried(planner(lengths, 3), lengths) == [3, 6]
    assert tried(planner(lengths, 3, capacity=Capacity.uniform(3)), lengths) == [4, 6]
    assert tried(planner(lengths, 3, capacity=Capacity.uniform(2)), lengths) == [6, 9]
    assert tried(planner(lengths[:4], 3), lengths[:4]) == [3], "there is no multiple within the samples"
    assert tried(planner(lengths, 3, micro_batches=2), lengths) == [6]


def test_a_large_batch_weighs_multiples_of_the_ranks():
    lengths = np.arange(65, 0, -1)
    cost = CostModel("measured", alpha=1.0, beta=0.1)
    assert all(number % 3 == 0 for number in tried(planner(lengths, 3, cost=cost), lengths))
    assert any(number % 3 for number in tried(planner(lengths[1:], 3, cost=cost), lengths[1:]))


def test_bounds_by_hand():
    cost = CostModel("measured", alpha=10.0, beta=1.0, further=4.0)
    lengths = np.array([8, 4, 4])
    unlimited = np.full(3, 3)
    # Two of 24 or 16 tokens padded, three of 16: with two alphas and a price for the third.
    two, three = planner(lengths, cost=cost)._bounds(np.array([2, 3]), lengths, unlimited)
    assert three == max((2 * 10 + 4 + 16) / 2, 18)
    assert 18 <= two <= max((2 * 10 + 16) / 2, 18)
    slow = planner(lengths, cost=cost, speeds=np.array([1.0, 0.5]))
    assert slow._bounds(np.array([3]), lengths, unlimited).tolist() == [pytest.approx(40 / 1.5)]


def test_large_batches_are_bounded_by_their_work_without_padding(monkeypatch):
    lengths = np.arange(65, 0, -1)
    calls = []
    real = micro_batches.least_work
    monkeypatch.setattr(
        micro_batches, "least_work", lambda *asked, **more: calls.append(more["price"]) or real(*asked, **more)
    )
    cost = CostModel("measured", alpha=10.0, beta=1.0, further=4.0)
    bounds = planner(lengths, cost=cost)._bounds(np.array([2, 4]), lengths, np.full(65, 65))
    assert bounds.tolist() == [(20 + lengths.sum()) / 2, (20 + 8 + lengths.sum()) / 2]
    assert calls == []
    planner(lengths[1:], cost=cost)._bounds(np.array([2]), lengths[1:], np.full(64, 64))
    assert calls == [4.0], "what a further micro-batch costs"


def test_unequal_ranks_may_take_one_each_exactly():
    lengths = np.array([10, 10, 2, 2, 2, 2])
    found = planner(lengths, cost=CostModel("measured", alpha=1e3), speeds=np.array([1.0, 0.5]))
    slowest, sizes, dealt = found._best(lengths, found._limits(lengths))
    assert sum(sizes) == 6 and [len(parts) for parts in dealt] == [1, 1]
    times = [(1e3 + n * lengths[start]) for n, start in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True)]
    assert slowest == max(times[dealt[0][0]], times[dealt[1][0]] / 0.5)
    shares = found.shares(np.arange(6), lengths, 0)
    assert sorted(np.concatenate([part for share in shares for part in share]).tolist()) == list(range(6))


def test_cuts_are_left_out_where_their_programme_is_too_large(monkeypatch):
    problem = Problem(np.array([9, 5, 5, 1]), 2, 4, micro_batches="auto")
    lengths, limits = np.array([9, 5, 5, 1]), np.full(4, 4)
    cuts = list(micro_batches._cuts(2, lengths, limits, problem))
    # Of least maximum 9 + 15 or 18 + 10, and of least total 9 + 15 within it and without it.
    assert cuts == [[1, 3], [1, 3], [1, 3]]
    monkeypatch.setattr(micro_batches, "fits_table", lambda number, most: False)
    assert list(micro_batches._cuts(2, lengths, limits, problem)) == [[1, 3]]
    monkeypatch.setattr(micro_batches, "fits_table", lambda number, most: most.tolist() == [4, 3, 2, 1])
    assert len(list(micro_batches._cuts(2, lengths, limits, problem))) == 2

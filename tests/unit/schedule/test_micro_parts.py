"""How many micro-batches are tried, and which cuts of the sorted batch, by hand and against all there are."""

from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.schedule import micro_batches
from dynbench.schedule.accumulation import Deal, SortedStep
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
    assert not micro_batches._gains_little([100.0] * 7 + [99.0]), "a hundredth is not less"


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
    planner._best(SortedStep(planner._problem.cost, lengths, planner._limits(lengths)))
    return numbers


def test_without_a_price_the_fewest_and_the_next_multiple_of_the_ranks_are_weighed():
    lengths = np.arange(12, 0, -1)
    assert tried(planner(lengths, 3), lengths) == [3, 6]
    assert tried(planner(lengths, 3, capacity=Capacity.uniform(3)), lengths) == [4, 6]
    assert tried(planner(lengths, 3, capacity=Capacity.uniform(2)), lengths) == [6, 9]
    assert tried(planner(lengths[:4], 3), lengths[:4]) == [3], "there is no multiple within the samples"


def test_a_large_batch_weighs_multiples_of_the_ranks():
    lengths = np.arange(65, 0, -1)
    cost = CostModel("measured", alpha=1.0, beta=0.1)
    assert all(number % 3 == 0 for number in tried(planner(lengths, 3, cost=cost), lengths))
    assert any(number % 3 for number in tried(planner(lengths[1:], 3, cost=cost), lengths[1:]))


def searched(batch: int, bound: Callable[[int], float], cost: Callable[[int], float]) -> tuple[list[int], int]:
    """Numbers that the search tries on one rank, and the one it keeps, where bounds and deals are as given."""
    found, numbers = planner(np.arange(batch, 0, -1), 1, cost=CostModel("measured")), []
    found._bounds = lambda asked, *_: np.array([bound(number) for number in asked.tolist()])
    found._deal = lambda number, *_: numbers.append(number) or Deal(cost(number), [number], [[0]])
    lengths = found._problem.lengths
    return numbers, found._best(SortedStep(found._problem.cost, lengths, found._limits(lengths)))[1][0]


def test_every_number_of_a_small_batch_is_tried_while_it_may_be_worth_it():
    everything = list(range(1, 65))
    assert searched(64, lambda number: 1.0, lambda number: 1000.0 - number) == (everything, 64)
    tried_of_more, _ = searched(65, lambda number: 1.0, lambda number: 1000.0 - number)
    assert tried_of_more == everything[:8], "a large batch ends where numbers gain little"


def test_a_number_is_tried_where_it_may_be_faster_by_more_than_two_thousandths():
    bounds = {1: 990.0, 2: 997.9, 3: 998.0, 4: 999.0}
    assert searched(4, bounds.__getitem__, {1: 1000.0, 2: 1001.0, 3: 998.0, 4: 999.0}.__getitem__) == ([1, 2], 1)
    assert searched(4, bounds.__getitem__, {1: 1100.0, 2: 999.0}.__getitem__) == ([1, 2], 2)
    assert searched(4, bounds.__getitem__, {1: 1100.0, 2: 1001.0, 3: 998.0}.__getitem__) == ([1, 2, 3], 3)


def test_numbers_are_tried_by_rising_bound_the_fewest_of_equal_ones_first_and_equally_fast_ones_keep_their_turn():
    tried_first = [*range(3, 61, 3), *range(1, 61, 3), *range(2, 61, 3)]
    assert searched(60, lambda number: 1.0 + number % 3, lambda number: 1000.0) == (tried_first, 3)


def test_of_equally_fast_numbers_the_fewest_are_run():
    # One sample is as long as a step takes at least; the others are dealt within its time in any number.
    lengths, capacity = np.array([100, 1, 1, 1, 1]), Capacity.table([[(1, 2), (100, 1)]])
    shares = planner(lengths, capacity=capacity).shares(np.arange(5), lengths, 0)[0]
    assert sum(map(len, shares)) == 3
    # Alone or two together, the other rank runs 5 beside these 10.
    shares = planner(np.full(3, 5), cost=CostModel("measured")).shares(np.arange(3), np.full(3, 5), 0)[0]
    assert sum(map(len, shares)) == 2


def test_without_a_price_the_next_multiple_may_be_one_sample_each():
    # Two of the short ones at once leave 9 + 4 to one rank; one at a time 10 + 1 and 9 + 2.
    lengths, capacity = np.array([10, 9, 2, 1]), Capacity.table([[(2, 2), (10, 1)]])
    shares = planner(lengths, capacity=capacity).shares(np.arange(4), lengths, 0)[0]
    assert sorted(sorted(int(lengths[ids[0]]) for ids in share) for share in shares) == [[1, 10], [2, 9]]


def test_a_fixed_number_is_run_by_a_rank_that_has_the_dearest_too():
    lengths = np.array([100, 1, 1, 1])
    shares = planner(lengths, micro_batches=2).shares(np.arange(4), lengths, 0)[0]
    assert [len(share) for share in shares] == [2, 2]


@pytest.mark.parametrize("changes", [{"speeds": np.full(2, 4.0)}, {"speeds": np.full(2, 0.25)}])
def test_ranks_of_one_speed_whatever_it_is_are_dealt_the_same(changes):
    lengths = np.array([90, 60, 50, 40, 20, 10, 5, 4, 2, 1])
    cost = CostModel("measured", alpha=12.0, further=9.0)
    of_none, of_one = (
        planner(lengths, cost=cost, **given).shares(np.arange(10), lengths, 0)[0] for given in ({}, changes)
    )
    assert sum(map(len, of_none)) > 2
    assert [[ids.tolist() for ids in share] for share in of_one] == [
        [ids.tolist() for ids in share] for share in of_none
    ]


def test_capacities_given_rank_by_rank_are_those_given_once():
    lengths = np.array([9, 8, 7, 3, 2, 1])
    once, each = (
        planner(lengths, capacity=capacity).shares(np.arange(6), lengths, 0)[0]
        for capacity in (Capacity.uniform(2), Capacity.per_rank([2, 2]))
    )
    assert [[ids.tolist() for ids in share] for share in each] == [[ids.tolist() for ids in share] for share in once]


COSTS = [
    CostModel(),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.5),
    CostModel("measured", alpha=7.0),
    CostModel("measured", alpha=7.0, further=2.0),
    CostModel("measured", alpha=2.0, gamma=0.1, further=9.0),
]


@st.composite
def planners(draw) -> MicroBatchPlanner:
    """Of every cost, for one to three ranks of equal and of unequal speed, with and without capacities."""
    workers = draw(st.integers(1, 3))
    return planner(
        sorted(draw(st.lists(st.integers(1, 30), min_size=workers, max_size=7)), reverse=True),
        workers,
        cost=draw(st.sampled_from(COSTS)),
        speeds=draw(st.sampled_from([None, np.array([3.0, 2.0, 0.5])[:workers], np.full(workers, 2.0)])),
        capacity=draw(st.sampled_from([Capacity(), Capacity.uniform(2), Capacity.table([[(9, 4), (30, 2)]])])),
    )


def numbers_of(planner: MicroBatchPlanner) -> range:
    """How many micro-batches there can be."""
    lengths = planner._problem.lengths
    return range(max(micro_batches._parts_needed(planner._limits(lengths)), planner._problem.workers), len(lengths) + 1)


@settings(max_examples=60)
@given(planners())
def test_a_deal_takes_what_its_slowest_rank_pays_and_every_sample_once_within_the_capacities(planner):
    problem, lengths = planner._problem, planner._problem.lengths
    limits, cost = planner._limits(lengths), problem.cost
    speeds = np.ones(problem.workers) if problem.equal_ranks else problem.relative_speeds()
    for number in numbers_of(planner):
        slowest, sizes, dealt = planner._deal(number, SortedStep(problem.cost, lengths, limits))
        starts = np.cumsum([0, *sizes[:-1]])
        assert (len(sizes), sum(sizes)) == (number, len(lengths))
        assert (np.array(sizes) <= limits[starts]).all()
        assert sorted(part for parts in dealt for part in parts) == list(range(number))
        pays = [
            sum(float(cost.cost(sizes[part], lengths[starts[part]])) for part in parts)
            + (len(parts) - 1) * cost.surcharge
            for parts in dealt
        ]
        assert min(map(len, dealt)) >= 1
        assert slowest == pytest.approx(max(np.array(pays) / speeds))


@settings(max_examples=60)
@given(planners())
def test_auto_is_as_fast_as_the_best_of_the_numbers_it_weighs(planner):
    problem, lengths = planner._problem, planner._problem.lengths
    limits, numbers = planner._limits(lengths), numbers_of(planner)
    found = planner._best(SortedStep(problem.cost, lengths, limits))[0]
    if problem.cost.cost_type != "measured":
        of_all = [number for number in numbers[1:] if number % problem.workers == 0]
        numbers = [numbers[0], *of_all[:1]]
    best = min(planner._deal(number, SortedStep(problem.cost, lengths, limits))[0] for number in numbers)
    assert best <= found <= best / (1 - micro_batches.WORTH)


@settings(max_examples=60)
@given(planners())
def test_cuts_are_the_best_of_all_that_the_capacities_allow(planner):
    """Of all cuts of the sorted samples: of least maximum, of least total among these, and of least total."""
    problem, lengths = planner._problem, planner._problem.lengths
    limits, size = planner._limits(lengths), len(lengths)
    for number in numbers_of(planner):
        every = [
            [float(problem.cost.cost(end - start, lengths[start])) for start, end in pairwise((0, *ends, size))]
            for ends in combinations(range(1, size), number - 1)
            if all(end - start <= limits[start] for start, end in pairwise((0, *ends, size)))
        ]
        least = min(map(max, every))
        wanted = [least, min(sum(costs) for costs in every if max(costs) <= least * (1 + 1e-12)), min(map(sum, every))]
        even, total_within, total = (
            [float(problem.cost.cost(end - start, lengths[start])) for start, end in pairwise(np.cumsum([0, *sizes]))]
            for sizes in micro_batches._cuts(number, SortedStep(problem.cost, lengths, limits))
        )
        assert [max(even), sum(total_within), sum(total)] == pytest.approx(wanted)
        assert max(total_within) == pytest.approx(least)


def test_cuts_keep_to_the_capacities_where_longer_ones_would_be_cheaper():
    lengths, capacity = np.array([10, 2, 1, 1, 1]), Capacity.uniform(2)
    found = planner(lengths, 1, capacity=capacity)
    # 10, 2 and 1 + 1 + 1 are the cheapest three within a maximum of 10, but for the capacity.
    cuts = list(micro_batches._cuts(3, SortedStep(CostModel(), lengths, found._limits(lengths))))
    assert [max(sizes) for sizes in cuts] == [2, 2, 2]


def test_bounds_by_hand():
    cost = CostModel("measured", alpha=10.0, beta=1.0, further=4.0)
    lengths = np.array([8, 4, 4])
    samples = SortedStep(cost, lengths, np.full(3, 3))
    # Two of 24 or 16 tokens padded, three of 16: with two alphas and a price for the third.
    two, three = planner(lengths, cost=cost)._bounds(np.array([2, 3]), samples)
    assert three == max((2 * 10 + 4 + 16) / 2, 18)
    assert 18 <= two <= max((2 * 10 + 16) / 2, 18)
    slow = planner(lengths, cost=cost, speeds=np.array([1.0, 0.5]))
    assert slow._bounds(np.array([3]), samples).tolist() == [pytest.approx(40 / 1.5)]


@pytest.mark.parametrize(
    ("speeds", "bound"), [(None, 110.0), (np.array([2.0, 1.9]), 55.0), (np.array([0.5, 0.4]), 220.0)]
)
def test_no_step_is_faster_than_its_longest_sample_on_the_fastest_rank(speeds, bound):
    lengths = np.array([100, 1, 1])
    found = planner(lengths, cost=CostModel("measured", alpha=10.0), speeds=speeds)
    assert found._bounds(np.array([3]), SortedStep(found._problem.cost, lengths, np.full(3, 3))).tolist() == [
        pytest.approx(bound)
    ]


def test_large_batches_are_bounded_by_their_work_without_padding(monkeypatch):
    lengths = np.arange(65, 0, -1)
    calls = []
    real = micro_batches.least_work
    monkeypatch.setattr(
        micro_batches, "least_work", lambda *asked, **more: calls.append(more["price"]) or real(*asked, **more)
    )
    cost = CostModel("measured", alpha=10.0, beta=1.0, further=4.0)
    bounds = planner(lengths, cost=cost)._bounds(np.array([2, 4]), SortedStep(cost, lengths, np.full(65, 65)))
    assert bounds.tolist() == [(20 + lengths.sum()) / 2, (20 + 8 + lengths.sum()) / 2]
    assert calls == []
    planner(lengths[1:], cost=cost)._bounds(np.array([2]), SortedStep(cost, lengths[1:], np.full(64, 64)))
    assert calls == [4.0], "what a further micro-batch costs"


def test_unequal_ranks_may_take_one_each_exactly():
    lengths = np.array([10, 10, 2, 2, 2, 2])
    found = planner(lengths, cost=CostModel("measured", alpha=1e3), speeds=np.array([1.0, 0.5]))
    slowest, sizes, dealt = found._best(SortedStep(found._problem.cost, lengths, found._limits(lengths)))
    assert sum(sizes) == 6 and [len(parts) for parts in dealt] == [1, 1]
    times = [(1e3 + n * lengths[start]) for n, start in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True)]
    assert slowest == max(times[dealt[0][0]], times[dealt[1][0]] / 0.5)
    shares = found.shares(np.arange(6), lengths, 0)[0]
    assert sorted(np.concatenate([part for share in shares for part in share]).tolist()) == list(range(6))


def test_cuts_are_left_out_where_their_programme_is_too_large(monkeypatch):
    problem = Problem(np.array([9, 5, 5, 1]), 2, 4, micro_batches="auto")
    lengths, limits = np.array([9, 5, 5, 1]), np.full(4, 4)
    cuts = list(micro_batches._cuts(2, SortedStep(problem.cost, lengths, limits)))
    # Of least maximum 9 + 15 or 18 + 10, and of least total 9 + 15 within it and without it.
    assert cuts == [[1, 3], [1, 3], [1, 3]]
    monkeypatch.setattr(micro_batches, "fits_table", lambda number, most: False)
    assert list(micro_batches._cuts(2, SortedStep(problem.cost, lengths, limits))) == [[1, 3]]
    monkeypatch.setattr(micro_batches, "fits_table", lambda number, most: most.tolist() == [4, 3, 2, 1])
    assert len(list(micro_batches._cuts(2, SortedStep(problem.cost, lengths, limits)))) == 2

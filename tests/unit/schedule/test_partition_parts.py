"""The parts that `partition` is made of, each against brute force over few samples."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.schedule import partition_search
from dynbench.schedule.cost import CostModel
from dynbench.schedule.partition import cut
from dynbench.schedule.partition_search import (
    TABLE_LIMIT,
    fits_table,
    group_costs,
    largest_groups,
    least_maximum,
    least_total,
    least_work,
    reach,
    search_weights,
)
from dynbench.schedule.partition_unequal import _Times

COSTS = [
    CostModel("tokens"),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.03),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
    CostModel("measured", beta=0.1),
    CostModel("measured", alpha=2.0, beta=0.0, gamma=0.0),
]
SEEDS = st.integers(0, 10**6)


def falling(seed: int, size: int, high: int = 40) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).integers(1, high, size))[::-1].copy()


def splits(samples: int, groups: int):
    """Sizes of so many groups, each at least one."""
    for ends in combinations(range(1, samples), groups - 1):
        yield [end - start for start, end in pairwise([0, *ends, samples])]


def first_weights(weights: np.ndarray, sizes) -> np.ndarray:
    return weights[np.cumsum([0, *sizes[:-1]])]


@pytest.mark.parametrize(
    ("limits", "ranks", "reached"),
    [
        ([2, 2, 3, 3, 9], 1, 2),
        ([2, 2, 3, 3, 9], 2, 5),
        ([1, 1, 1], 2, 2),
        ([9, 9], 1, 2),
        ([0, 4, 4], 3, 0),
        ([1, 0, 4], 3, 1),
    ],
)
def test_what_limits_alone_hold(limits, ranks, reached):
    assert reach(np.array(limits), ranks) == reached


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 3), st.integers(0, 4), st.sampled_from(COSTS), st.booleans())
def test_the_least_maximum_and_what_may_begin_where_without_raising_it(seed, ranks, more, cost, capped):
    size = ranks + more
    lengths = falling(seed, size)
    weights = search_weights(cost, lengths)
    limits = np.sort(np.random.default_rng(seed).integers(1, 5, size)) if capped else None
    ways = [
        sizes
        for sizes in splits(size, ranks)
        if limits is None or all(n <= most for n, most in zip(sizes, first_weights(limits, sizes), strict=True))
    ]
    counts = least_maximum(weights, ranks, limits)
    if not ways:
        assert counts is None
        return
    assert counts is not None and sum(counts) == size and min(counts) >= 1
    peak = (first_weights(weights, counts) * counts).max()
    assert peak == min((first_weights(weights, sizes) * sizes).max() for sizes in ways)
    allowed = [[n for n in range(1, size - place + 1) if n * weight <= peak] for place, weight in enumerate(weights)]
    most = [max(each, default=0) for each in allowed]
    found = largest_groups(weights, counts, limits)
    assert found.tolist() == (most if limits is None else np.minimum(most, limits).tolist())
    assert found.dtype == np.int64


@pytest.mark.parametrize("cost", COSTS)
def test_whole_tokens_are_searched_as_they_are_and_other_costs_by_what_a_sample_adds(cost):
    lengths = np.array([9, 4])
    found = search_weights(cost, lengths)
    if cost.cost_type in ("tokens", "tokens_sq"):
        assert found is lengths
    else:
        assert found.tolist() == cost.per_sample(lengths).tolist()


def test_quick_sweeps_leave_few_to_the_exact_ones(monkeypatch):
    swept, sweep = [], partition_search._sweep
    monkeypatch.setattr(partition_search, "_sweep", lambda *asked: swept.append(0) or sweep(*asked))
    drawn = [np.sort(np.random.default_rng(seed).lognormal(3, 1, 200))[::-1].copy() for seed in range(10)]
    known = [least_maximum(weights, 16) for weights in drawn]
    after, _ = len(swept), swept.clear()
    monkeypatch.setattr(partition_search, "_narrow", lambda inverse, ranks, floor: (floor, floor))
    assert [least_maximum(weights, 16) for weights in drawn] == known
    assert after < 0.7 * len(swept)
    swept.clear()
    whole = [np.sort(np.random.default_rng(seed).integers(1, 200, 200))[::-1].copy() for seed in range(10)]
    for weights in whole:
        least_maximum(weights, 16)
    assert len(swept) == 10, "whole numbers need but one"


def test_samples_that_weigh_nothing_may_be_taken_all():
    with np.errstate(all="raise"):
        assert largest_groups(np.array([2.0, 0.0, 0.0]), [1, 2]).tolist() == [1, 2, 1]
    assert least_maximum(np.zeros(5), 2) is not None
    assert least_maximum(np.array([3.0, 0, 0, 0]), 2, np.array([2, 2, 2, 2])) is not None


def test_products_decide_where_quotients_are_rounded():
    weights = np.array([0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])  # 7 * 0.1 is above 0.7 by rounding
    assert largest_groups(weights, [1, 7]).tolist() == [1, 7, 6, 5, 4, 3, 2, 1]
    assert 7 * 0.1 > 0.7
    assert largest_groups(weights, [1, 6, 1])[1] == 6


def test_a_group_is_as_large_as_products_allow_however_its_quotient_is_rounded():
    corrected = 0
    for number in range(2, 40):
        for weight in np.random.default_rng(number).uniform(0.01, 1, 40):
            for peak in (number * weight, np.nextafter(number * weight, 0)):
                most = max(n for n in (number - 1, number, number + 1) if n * weight <= peak)
                corrected += most != int(peak / weight)
                weights = np.array([peak, *[weight] * (number + 1)])
                assert largest_groups(weights, [1, 1])[1] == most
                assert partition_search._sweep(weights.data, None, 2, peak) == (None, (most + 1) * weight)
    assert corrected > 100, "quotients that are rounded to another number"


def test_a_search_without_limits_begins_where_it_will_end():
    """Quick sweeps leave little to the exact ones: the interval holds the least threshold and is narrow."""
    for seed in range(20):
        weights = np.sort(np.random.default_rng(seed).lognormal(3, 1, 60))[::-1].copy()
        counts = least_maximum(weights, 7)
        assert counts is not None
        least = (first_weights(weights, counts) * counts).max()
        floor = max(float(weights.sum()) / 7, float(weights[0]))
        low, high = partition_search._narrow(1.0 / weights, 7, floor)
        assert floor <= low <= least <= high
        assert high - low <= 2 * (least - floor + floor / 32) / 2**partition_search._NARROWING + 3e-9 * high
        whole = np.sort(np.random.default_rng(seed).integers(1, 60, 50))[::-1].copy()
        sizes = least_maximum(whole, 6)
        assert sizes is not None
        ceiling = max(-(-int(whole.sum()) // 6), int(whole[0]))
        assert partition_search._least_integer(whole.data, 6, ceiling) == (first_weights(whole, sizes) * sizes).max()


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 4), st.integers(0, 4), st.sampled_from(COSTS))
def test_the_least_total_is_that_of_all_splits(seed, ranks, more, cost):
    size = ranks + more
    lengths = falling(seed, size)
    most = np.minimum(np.random.default_rng(seed).integers(2, 6, size), size - np.arange(size))
    costs = group_costs(cost, lengths, most)
    assert costs.shape == (size, most.max())
    for place, row in enumerate(costs):
        known = [
            float(cost.cost_padded(n, lengths[place])) if n <= most[place] else np.inf for n in range(1, len(row) + 1)
        ]
        assert row.tolist() == known

    def total(sizes) -> float:
        starts = np.cumsum([0, *sizes[:-1]])
        if max(sizes) > costs.shape[1]:
            return np.inf
        return sum(costs[start, n - 1] for start, n in zip(starts, sizes, strict=True))

    best = min(map(total, splits(size, ranks)))
    if np.isfinite(best):
        assert total(least_total(costs, ranks)) == pytest.approx(best, rel=1e-12)


def test_the_programme_is_run_up_to_its_stated_size():
    most = np.full(2**8, 2**6)
    assert fits_table(TABLE_LIMIT // 2**14, most)
    assert not fits_table(TABLE_LIMIT // 2**14 + 1, most)
    most[0] += 1
    assert not fits_table(TABLE_LIMIT // 2**14, most)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 7), st.sampled_from([0.0, 3.0, 50.0]), st.sampled_from([2, 9]))
def test_the_bound_on_padded_work_is_one_and_is_tight_where_it_says(seed, size, price, limit):
    weights = falling(seed, size).astype(float)
    limits = np.full(size, limit)
    least = [
        min(
            (
                float(first_weights(weights, sizes) @ np.array(sizes))
                for sizes in splits(size, n)
                if max(sizes) <= limit
            ),
            default=np.inf,
        )
        for n in range(1, size + 1)
    ]
    numbers = np.arange(1, size + 1)
    bound = least_work(numbers, weights, limits, price)
    assert (bound <= np.array(least) * (1 + 1e-12)).all()
    assert bound[-1] == pytest.approx(weights.sum()), "nothing is padded"
    assert (bound + price * numbers).min() == pytest.approx((np.array(least) + price * numbers).min())
    if limit >= size:
        assert bound[0] == pytest.approx(size * weights[0]), "all are as long as the longest"
    few = least_work(numbers[1:3], weights, limits, price)
    assert (few <= np.array(least)[1:3] * (1 + 1e-12)).all()


@pytest.mark.parametrize("fewest", [1, 3])
def test_bounds_between_the_ends_are_what_the_stated_slopes_give(fewest):
    """Slopes of an eighth each, from the steepest that one of so many groups can be worth."""
    weights = falling(4, 12).astype(float)
    numbers = np.arange(fewest, 13)
    prices = [0.0, 5.0, *(weights[0] * 12 / fewest / 8.0**k for k in range(5))]
    free = {price: min(value(weights, n, price) for n in range(1, 13)) for price in prices}
    expected = [max(free[price] - price * n for price in prices) for n in numbers.tolist()]
    assert least_work(numbers, weights, np.full(12, 12), 5.0).tolist() == pytest.approx(expected)


def value(weights: np.ndarray, groups: int, price: float) -> float:
    """Least work of so many groups, with their price."""
    costs = group_costs(CostModel(), weights.astype(int), np.arange(len(weights), 0, -1))
    sizes = least_total(costs, groups)
    return float(first_weights(weights, sizes) @ np.array(sizes)) + price * groups


@settings(max_examples=80)
@given(SEEDS, st.sampled_from(COSTS), st.one_of(st.floats(0.5, 400), st.integers(0, 10**6)))
def test_what_each_class_takes_within_a_threshold_and_which_comes_next(seed, cost, threshold):
    """Thresholds are such that a search meets: any, or what some group takes, and a bit less or more."""
    rng = np.random.default_rng(seed)
    lengths, speeds = falling(seed, 6), np.array([1.0, 0.3])
    limits = np.sort(rng.integers(0, 7, (2, 6)), axis=1)
    times = [[[float(cost.cost_padded(n, length)) / speed for n in range(8)] for length in lengths] for speed in speeds]
    if isinstance(threshold, int):
        known = [time for by_length in times for by_count in by_length for time in by_count[1:]]
        time = known[threshold // 3 % len(known)]
        threshold = float((time, np.nextafter(time, 0), np.nextafter(time, np.inf))[threshold % 3])
    takes, following = _Times(cost, lengths, speeds, limits).within(threshold)
    later = []
    for kind, place in product(range(2), range(6)):
        most = max(n for n in range(limits[kind, place] + 1) if n == 0 or times[kind][place][n] <= threshold)
        assert takes[kind, place] == most
        if most < limits[kind, place]:
            later.append(times[kind][place][most + 1])
    assert following == (max(min(later), np.nextafter(threshold, np.inf)) if later else np.inf)
    assert takes.dtype == np.int64


@pytest.mark.parametrize("threshold", [2.0, 2.5, 1e9])
def test_samples_without_weight_are_taken_as_far_as_limits_go_where_alpha_is_paid(threshold):
    lengths, limits = np.array([5, 4]), np.array([[2, 3]])
    with np.errstate(all="raise"):
        for beta in (0.0, 1e-320) if threshold > 2 else (0.0,):
            free = _Times(CostModel("measured", alpha=2.0, beta=beta), lengths, np.array([1.0]), limits)
            takes, following = free.within(threshold)
            assert (takes.tolist(), following) == ([[2, 3]], np.inf)
            assert free.within(1.5)[0].tolist() == [[0, 0]]


def test_the_peak_of_a_path_is_its_slowest_group():
    lengths, limits = np.array([9, 4, 2]), np.full((2, 3), 3)
    times = _Times(CostModel(), lengths, np.array([2.0, 0.5]), limits)
    assert times.peak([(0, 1), (1, 2)]) == 16
    assert times.peak([(0, 2), (1, 1)]) == 9
    assert times.peak([(1, 2), (0, 1)]) == 36


def test_consecutive_groups_of_given_sizes():
    assert [part.tolist() for part in cut(np.arange(6), [1, 3, 2])] == [[0], [1, 2, 3], [4, 5]]

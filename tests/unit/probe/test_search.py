"""The capacity search against a known threshold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dynbench.probe.capacity import CapacitySearch, length_grid, monotone, with_margin


def run(search: CapacitySearch, threshold: int) -> int:
    trials = 0
    while (n := search.next_trial()) is not None:
        search.record(n, n <= threshold)
        trials += 1
        assert trials < 100
    return trials


@given(
    threshold=st.integers(0, 5000),
    start=st.integers(1, 6000),
    ceiling=st.integers(1, 4000),
    gap=st.floats(0.001, 0.5),
)
def test_answer_is_within_the_gap(threshold: int, start: int, ceiling: int, gap: float) -> None:
    search = CapacitySearch(start=start, ceiling=ceiling, gap=gap)
    run(search, threshold)
    assert search.largest_ok <= min(threshold, ceiling)
    if threshold >= ceiling:
        assert search.largest_ok == ceiling
        assert search.smallest_fail is None
    elif threshold == 0:
        assert search.largest_ok == 0
        assert search.smallest_fail == 1
    else:
        assert search.smallest_fail is not None
        assert search.smallest_fail > threshold
        assert search.smallest_fail - search.largest_ok <= max(1, gap * search.largest_ok)


@given(threshold=st.integers(1, 5000), start=st.integers(1, 5000))
def test_number_of_trials_is_logarithmic(threshold: int, start: int) -> None:
    assert run(CapacitySearch(start=start, gap=0.05), threshold) <= 30


def test_unrecorded_trial_is_asked_again() -> None:
    search = CapacitySearch(start=8)
    assert search.next_trial() == search.next_trial() == 8


def test_later_failure_takes_success_back() -> None:
    search = CapacitySearch(start=4, gap=0.01)
    search.record(4, True)
    search.record(8, True)
    search.record(8, False)
    assert (search.largest_ok, search.smallest_fail) == (4, 8)
    run(search, 5)
    assert search.largest_ok == 5


@given(st.dictionaries(st.integers(1, 512), st.integers(0, 1000), min_size=1))
def test_monotone_repair_only_lowers(capacity: dict[int, int]) -> None:
    repaired = monotone(capacity)
    lengths = sorted(repaired)
    assert all(repaired[a] >= repaired[b] for a, b in pairwise(lengths))
    assert all(repaired[length] <= capacity[length] for length in lengths)
    assert min(repaired.values()) == min(capacity.values())


def test_margin_leaves_one() -> None:
    assert with_margin(100, 0.1) == 90
    assert with_margin(1, 0.9) == 1
    assert with_margin(0, 0.1) == 0


def test_length_grid() -> None:
    assert length_grid(256) == (32, 64, 128, 256)
    assert length_grid(100) == (32, 64, 100)
    assert length_grid(20) == (20,)
    assert length_grid(256, [64, 16, 64]) == (16, 64)

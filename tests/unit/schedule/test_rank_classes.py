"""The order in which unequal ranks take sorted samples, against every order and every count."""

from itertools import pairwise, permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.schedule.partition_unequal import ClassSearch, sweep_order


def can_end(takes: np.ndarray, order: tuple[int, ...], start: int = 0) -> bool:
    """Whether ranks of these classes, in this order, take all samples from `start` on, at least one each."""
    if not order:
        return start == takes.shape[1]
    if start >= takes.shape[1]:
        return False
    return any(can_end(takes, order[1:], start + n) for n in range(1, int(takes[order[0], start]) + 1))


def judge(takes: np.ndarray, path: list[tuple[int, int]], sizes: tuple[int, ...]) -> None:
    """The path takes all samples, uses every rank once, and no rank takes more than it may."""
    assert sorted(kind for kind, _ in path) == [kind for kind, size in enumerate(sizes) for _ in range(size)]
    starts = np.cumsum([0, *(count for _, count in path)])
    assert starts[-1] == takes.shape[1]
    for (kind, count), (start, end) in zip(path, pairwise(starts.tolist()), strict=True):
        assert 1 <= count <= takes[kind, start]
        assert end - start == count


SIZES = st.lists(st.integers(1, 2), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60)
@given(SIZES, st.integers(0, 6), st.integers(0, 10**6), st.sampled_from([0, 1]))
def test_a_path_is_found_wherever_there_is_one(sizes, more, seed, least):
    rng, samples = np.random.default_rng(seed), sum(sizes) + more
    takes = np.sort(rng.integers(least, 5, (len(sizes), samples)), axis=1)
    takes = np.minimum(takes, samples - np.arange(samples))
    order = tuple(kind for kind, size in enumerate(sizes) for _ in range(size))
    found = ClassSearch(sizes).path(takes)
    assert (found is not None) == any(can_end(takes, one) for one in set(permutations(order)))
    if found is not None:
        judge(takes, found, sizes)
    swept = sweep_order(takes, order)
    assert (swept is not None) == can_end(takes, order)
    if swept is not None:
        judge(takes, swept, sizes)
        assert [kind for kind, _ in swept] == list(order)


def test_states_are_the_ways_to_have_used_some_of_each_class():
    assert ClassSearch.states([1, 1]) == 4
    assert ClassSearch.states([3, 2, 1]) == 24
    assert ClassSearch.states(iter([63, 63])) == 4096


def test_the_fast_rank_takes_the_long_samples_where_only_that_works():
    takes = np.array([[2, 2, 2, 1], [0, 0, 2, 1]])
    assert ClassSearch((1, 1)).path(takes) == [(0, 2), (1, 2)]
    assert sweep_order(takes, [1, 0]) is None
    assert ClassSearch((2,)).path(np.array([[1, 1, 1]])) is None

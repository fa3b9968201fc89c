"""Baselines that split one global batch by unpadded sums, or into equal counts.

Largest differencing: Karmarkar and Karp, The differencing method of set partitioning (UCB/CSD-82-113, 1982), for k
sets; with equal counts as in Michiels, Korst, Aarts and van Leeuwen (STACS 2003), balanced largest differencing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish
from dynbench.schedule.peers.base import Peer, check_equal_counts
from dynbench.schedule.plan import FloatArray, IntArray, in_turn, integers, stable_argsort
from dynbench.schedule.policy import Problem


class SortedEqual(Peer):
    """Contiguous cuts of the sorted batch; where B is no multiple of G, the shorter groups get one more."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in ascending length."""
        ordered = batch[stable_argsort(self.problem.padded_lengths[batch])]
        return np.array_split(ordered, self.problem.workers)


class LongestFirst(Peer):
    """Samples from the longest down, each to the rank that would finish it first; padding is not seen."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in rank order; ranks of unequal speed are loaded by their time."""
        weights, problem = self.problem.weights(batch), self.problem
        if problem.speeds is None:
            dealt = deal_longest_first(weights, problem.workers)
        else:
            dealt = deal_to_first_finish(weights, problem.relative_speeds())
        return [batch[positions] for positions in dealt]


class KarmarkarKarp(Peer):
    """Any counts; prtpy's implementation.

    Raises:
        UsageError: prtpy is not installed.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        try:
            import prtpy
        except ImportError as error:
            raise UsageError(f"karmarkar_karp needs the package prtpy ({error})", "pip install prtpy") from error
        self._prtpy = prtpy

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in prtpy's order."""
        items = dict(enumerate(self.problem.weights(batch).tolist()))
        parts = self._prtpy.partition(algorithm=self._prtpy.partitioning.kk, numbins=self.problem.workers, items=items)
        return [batch[integers(positions)] for positions in parts]


class KarmarkarKarpEqual(Peer):
    """Equal counts, one less for some ranks where B is no multiple of G; prtpy does this for two sets only."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups from the smallest sum to the largest."""
        ranks = self.problem.workers
        weights = self.problem.weights(batch)
        # Weightless stand-ins, position -1, make the counts divisible; each rank gets at most one.
        missing = -len(batch) % ranks
        dealt = np.concatenate([np.full(missing, -1), stable_argsort(weights)])
        positions = in_turn(dealt, ranks).T
        merged = _merge_all(np.where(positions < 0, 0.0, weights[positions]), positions.tolist())
        return [batch[members[members >= 0]] for members in merged]


def _merge_all(sums: FloatArray, positions: list[list[int]]) -> list[IntArray]:
    """Merges tuples of a set for each rank, widest spread first, smallest with largest, until one tuple is left."""
    heap = [
        (float(row[0] - row[-1]), index, row, [[position] for position in positions[index]])
        for index, row in enumerate(sums)
    ]
    heapq.heapify(heap)
    for index in range(len(heap), 2 * len(heap) - 1):
        _, _, left, left_sets = heapq.heappop(heap)
        _, _, right, right_sets = heapq.heappop(heap)
        merged = left + right[::-1]
        order = stable_argsort(merged)
        sets = [left_sets[i] + right_sets[-1 - i] for i in order.tolist()]
        merged = merged[order]
        heapq.heappush(heap, (float(merged[0] - merged[-1]), index, merged, sets))
    return [integers(members) for members in heap[0][3]]


LINEAR = 24576
"""Tokens whose linear layers cost as much as a token's attention to one other."""

_Set = tuple[int, int, tuple[tuple[int, int], ...]]
"""Sum, count, and the pairs (position, weight) in the order in which they joined."""


class Verl(Peer):
    """Equal counts, as a trainer of verl deals a global batch to its ranks.

    Raises:
        UsageError: B is no multiple of G.
    """

    equal_size = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if self.equal_size:
            check_equal_counts(self.name, problem)

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups from the largest sum to the smallest."""
        lengths = self.problem.lengths[batch]
        parts = balanced_partitions((LINEAR * lengths + lengths**2).tolist(), self.problem.workers, self.equal_size)
        return [batch[integers(positions)] for positions in parts]


class VerlFree(Verl):
    """Any counts, as it splits a rank's share into micro-batches."""

    equal_size = False


def _joined(one: _Set, other: _Set) -> _Set:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Tuple:
    """As many sets as there are ranks, falling."""

    def __init__(self, sets: Iterable[_Set]) -> None:
        self.sets = sorted(sets, reverse=True)
        self.rank = self.sets[0][0] - self.sets[-1][0], self.sets[0]

    def __lt__(self, other: _Tuple) -> bool:
        """The widest spread comes first; of equal ones that with the larger first set."""
        return self.rank > other.rank


def balanced_partitions(weights: Sequence[int], parts: int, equal_size: bool) -> list[list[int]]:
    """Positions per part, ascending, from the largest sum to the smallest.

    Args:
        weights: what is dealt; a multiple of `parts` where the counts are to be equal.
        parts: how many.
        equal_size: whether every part has as many.
    """
    width = parts if equal_size else 1
    ascending = sorted((weight, position) for position, weight in enumerate(weights))
    heap = []
    for first in range(0, len(ascending), width):
        sets: list[_Set] = [(weight, 1, ((at, weight),)) for weight, at in ascending[first : first + width]]
        heap.append(_Tuple(sets + [(0, 0, ())] * (parts - width)))
    heapq.heapify(heap)
    while len(heap) > 1:
        one, other = heapq.heappop(heap).sets, heapq.heappop(heap).sets
        heapq.heappush(heap, _Tuple(map(_joined, one, reversed(other))))
    return [sorted(position for position, _ in members) for _, _, members in heap[0].sets]

"""`verl` and `verl_free`: verl's `get_seqlen_balanced_partitions`, largest differencing of its own cost.

Its cost is 24576*L + L**2 whatever ours is: the operations of a dense transformer 4,096 wide.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.base import Peer
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Problem

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
        if self.equal_size and problem.global_batch % problem.workers:
            raise UsageError(
                f"train.global_batch: {problem.global_batch} is not a multiple of the {problem.workers} ranks",
                f"{self.name} deals equal counts.",
            )

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups from the largest sum to the smallest."""
        lengths = self.problem.lengths[batch]
        parts = balanced_partitions((LINEAR * lengths + lengths**2).tolist(), self.problem.workers, self.equal_size)
        return [batch[np.array(positions, dtype=np.int64)] for positions in parts]


class VerlFree(Verl):
    """Any counts, as it splits a rank's share into micro-batches."""

    equal_size = False


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
        heapq.heappush(
            heap, _Tuple((a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(one, reversed(other), strict=True))
        )
    return [sorted(position for position, _ in members) for _, _, members in heap[0].sets]

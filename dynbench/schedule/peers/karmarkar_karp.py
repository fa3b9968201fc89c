"""`karmarkar_karp` and `karmarkar_karp_equal`: the largest differencing method, which balances unpadded sums.

Karmarkar and Karp, The differencing method of set partitioning (UCB/CSD-82-113, 1982), for k sets; with equal counts
as in Michiels, Korst, Aarts and van Leeuwen (STACS 2003), balanced largest differencing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.base import Peer
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Problem


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
        items = dict(enumerate(self.weights(batch).tolist()))
        parts = self._prtpy.partition(algorithm=self._prtpy.partitioning.kk, numbins=self.problem.workers, items=items)
        return [batch[np.array(positions, dtype=np.int64)] for positions in parts]


class KarmarkarKarpEqual(Peer):
    """Equal counts, one less for some ranks where B is no multiple of G; prtpy does this for two sets only."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups from the smallest sum to the largest."""
        ranks = self.problem.workers
        weights = self.weights(batch)
        # Weightless stand-ins, position -1, make the counts divisible; each rank gets at most one.
        missing = -len(batch) % ranks
        positions = np.concatenate([np.full(missing, -1, dtype=np.int64), np.argsort(weights, kind="stable")])
        sums = np.where(positions < 0, 0.0, weights[positions])
        return [batch[members[members >= 0]] for members in _merge_all(sums.reshape(-1, ranks), positions, ranks)]


def _merge_all(sums: np.ndarray, positions: IntArray, ranks: int) -> list[IntArray]:
    """Merges tuples of `ranks` sets, widest spread first, smallest set with largest, until one tuple is left."""
    heap = [
        (float(row[0] - row[-1]), index, row, [[p] for p in members])
        for index, (row, members) in enumerate(zip(sums, positions.reshape(-1, ranks).tolist(), strict=True))
    ]
    heapq.heapify(heap)
    for index in range(len(heap), 2 * len(heap) - 1):
        _, _, left, left_sets = heapq.heappop(heap)
        _, _, right, right_sets = heapq.heappop(heap)
        merged = left + right[::-1]
        order = np.argsort(merged, kind="stable")
        sets = [left_sets[i] + right_sets[ranks - 1 - i] for i in order.tolist()]
        merged = merged[order]
        heapq.heappush(heap, (float(merged[0] - merged[-1]), index, merged, sets))
    return [np.array(members, dtype=np.int64) for members in heap[0][3]]

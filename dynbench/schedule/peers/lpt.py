"""`lpt`: longest processing time first (Graham, SIAM J. Appl. Math. 17, 1969, section 5): balances unpadded sums."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dynbench.schedule.peers.base import Peer
from dynbench.schedule.plan import IntArray


class LongestFirst(Peer):
    """Samples from the longest down, each to the rank that would finish it first; padding is not seen."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in rank order; ranks of unequal speed are loaded by their time."""
        weights = self.weights(batch)
        order = np.argsort(-weights, kind="stable").tolist()
        owners = self._fastest_finish if self.problem.speeds is not None else self._least_loaded
        members: list[list[int]] = [[] for _ in range(self.problem.workers)]
        for position, rank in zip(order, owners(weights[order].tolist()), strict=True):
            members[rank].append(position)
        return [batch[positions] for positions in members]

    def _least_loaded(self, weights: Sequence[float]) -> list[int]:
        heap = [(0.0, rank) for rank in range(self.problem.workers)]
        owners = []
        for weight in weights:
            load, rank = heap[0]
            heapq.heapreplace(heap, (load + weight, rank))
            owners.append(rank)
        return owners

    def _fastest_finish(self, weights: Sequence[float]) -> list[int]:
        speeds = self.problem.relative_speeds()
        load = np.zeros(len(speeds))
        owners = []
        for weight in weights:
            rank = int(((load + weight) / speeds).argmin())
            load[rank] += weight
            owners.append(rank)
        return owners

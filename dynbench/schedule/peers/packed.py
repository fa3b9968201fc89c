"""`packed`: the reference line without padding, for models that attend to each packed sample alone.

Each rank runs one packed row. Best-fit decreasing (Johnson, J. Comput. Syst. Sci. 8, 1974) packs the batch, and the
row size is the least at which it fits into G rows, found by bisection as in MULTIFIT (Coffman, Garey and Johnson,
SIAM J. Comput. 7, 1978).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from dynbench.schedule.peers.base import fill_empty
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan, single
from dynbench.schedule.policy import BatchPolicy

_BISECTIONS = 16


class Packed(BatchPolicy):
    """Rows of nearly equal unpadded cost, one per rank; capacities, which are in padded samples, do not apply."""

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """One plan per batch."""
        return [
            StepPlan(step, single(fill_empty(self._rows(batch))), packed=True)
            for step, batch in enumerate(batches, first_step)
        ]

    def _rows(self, batch: IntArray) -> list[IntArray]:
        weights = self.problem.cost.per_sample(self.problem.lengths[batch])
        order = np.argsort(-weights, kind="stable")
        descending, speeds = weights[order].tolist(), self.problem.relative_speeds()
        low = max(float(weights.sum() / speeds.sum()), float(weights.max() / speeds.max()))
        owners, size = _best_fit(descending, low * speeds), low
        high = low
        while owners is None:
            low, high = high, high * 1.5
            owners, size = _best_fit(descending, high * speeds), high
        for _ in range(_BISECTIONS):
            middle = (low + size) / 2
            if not low < middle < size:
                break
            tried = _best_fit(descending, middle * speeds)
            if tried is None:
                low = middle
            else:
                owners, size = tried, middle
        rank = np.array(owners)
        return [batch[order[rank == g]] for g in range(self.problem.workers)]


def _best_fit(descending: Sequence[float], sizes: FloatArray) -> list[int] | None:
    """The row of each item, fullest row that still takes it; None when one fits nowhere."""
    rooms = sorted((float(size), row) for row, size in enumerate(sizes))
    # Sums of floats may exceed the mean by rounding alone.
    slack = 1e-9 * float(sizes.max())
    owners = []
    for item in descending:
        found = bisect_left(rooms, (item - slack, -1))
        if found == len(rooms):
            return None
        room, row = rooms.pop(found)
        insort(rooms, (room - item, row))
        owners.append(row)
    return owners

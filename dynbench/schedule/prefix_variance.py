"""The tie-break of `prefix`: among counts of least maximum, the least variance of the cost over ranks.

Few candidates are enumerated. Otherwise: the variance is concave in (S1, S2) = (sum of costs, sum of squared costs), so
its minimum is a vertex of the lower hull of the reachable points, and the best vertex minimises the separable
sum of (c² - lambda * c) at lambda = 2 * S1 / G, the variance's own gradient. S1 does not fall as lambda rises, which
confines that fixed point; each value of lambda is one programme over ranks and samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dynbench.schedule.plan import FloatArray, IntArray
from dynbench.schedule.prefix_enumerate import all_counts, costs_of, number_of_counts

ENUMERATION_LIMIT = 20_000
"""Largest ranks * plans that are enumerated inline."""
PROGRAMME_LIMIT = 2**17
"""Largest ranks * (samples * counts + 256) of one programme that is run inline (256 stands for a layer's overhead);
beyond, the tie is not broken exactly."""

_COUNTED = 2**12
"""Largest ranks * samples for which the plans are counted exactly, some tens of microseconds."""
_ROUNDING = 1e-12
"""Of costs scaled to at most 1."""


def least_variance(allowed: FloatArray, most: IntArray, global_batch: int) -> IntArray | None:
    """Counts of least variance, shape [G].

    Args:
        allowed: costs per rank and count, shape [G, K].
        most: largest count per rank that keeps the least maximum, shape [G].
        global_batch: samples in all (B), at most sum(most).

    Returns:
        The counts, or None when the case is too large to prove it.
    """
    spare = int(most.sum()) - global_batch
    if spare == 0:
        return most.astype(np.int64)
    lower, upper = np.maximum(1, most - spare).astype(np.int64), most.astype(np.int64)
    largest = float(allowed[np.arange(len(upper)), upper - 1].max())
    # The variance does not change with a shift; small numbers round less.
    scaled = allowed / largest - 1.0 if largest > 0 else allowed
    room = min(spare, global_batch - int(lower.sum()))
    width = min(int((upper - lower).max()), room) + 1
    if _few(lower, upper, global_batch, room):
        counts = all_counts(lower, upper, global_batch)
        return np.asarray(counts[costs_of(scaled, counts).var(axis=1).argmin()])
    if len(lower) * ((room + 1) * width + 256) > PROGRAMME_LIMIT:
        return None
    return _Hull(scaled, lower, upper, global_batch).least()


def _few(lower: IntArray, upper: IntArray, global_batch: int, room: int) -> bool:
    """True when all plans can be enumerated inline; large cases are judged by a bound on their number."""
    ranks = len(lower)
    if ranks * comb(room + ranks - 1, ranks - 1) <= ENUMERATION_LIMIT:
        return True
    counted = ranks * room <= _COUNTED
    return counted and ranks * number_of_counts(lower, upper, global_batch) <= ENUMERATION_LIMIT


@dataclass(frozen=True, slots=True)
class _Point:
    """A vertex: its counts, and the sums of its costs and squared costs."""

    counts: IntArray
    total: float
    squares: float

    def value(self, slope: float) -> float:
        return self.squares - slope * self.total

    def variance(self) -> float:
        return self.squares - self.total**2 / len(self.counts)


class _Hull:
    """The lower hull of (S1, S2), visited only where the best vertex can be."""

    def __init__(self, costs: FloatArray, lower: IntArray, upper: IntArray, total: int) -> None:
        # Count up from the lower bounds or down from the upper ones, whichever is nearer.
        up = total - int(lower.sum()) <= int(upper.sum()) - total
        self._origin, self._sign = (lower, 1) if up else (upper, -1)
        self._room = abs(total - int(self._origin.sum()))
        self._costs = costs
        ranks = range(len(lower))
        widths = np.minimum(upper - lower, self._room) + 1
        self._options = [costs[rank, self._origin[rank] - 1 + self._sign * np.arange(widths[rank])] for rank in ranks]
        first = float(costs[ranks, lower - 1].sum()), float(costs[ranks, upper - 1].sum())
        self._slopes = tuple(2 * bound / len(lower) for bound in first)

    def least(self) -> IntArray:
        """Counts of the vertex of least variance."""
        low, high = self._slopes
        left, right = self._vertex(low), self._vertex(high)
        best = min(left, right, key=_Point.variance)
        segments = [(low, left, high, right)]
        while segments:
            low, left, high, right = segments.pop()
            if right.total - left.total <= _ROUNDING:
                continue
            ranks = len(self._options)
            inner_low, inner_high = max(low, 2 * left.total / ranks), min(high, 2 * right.total / ranks)
            if inner_low > inner_high + _ROUNDING:
                continue
            if inner_low > low + _ROUNDING:
                middle = self._vertex(inner_low)
                segments.append((inner_low, middle, high, right))
            elif inner_high < high - _ROUNDING:
                middle = self._vertex(inner_high)
                segments.append((low, left, inner_high, middle))
            else:
                slope = (right.squares - left.squares) / (right.total - left.total)
                middle = self._vertex(slope)
                if middle.value(slope) >= left.value(slope) - _ROUNDING:
                    continue
                segments += [(low, left, slope, middle), (slope, middle, high, right)]
            best = min(best, middle, key=_Point.variance)
        return best.counts

    def _vertex(self, slope: float) -> _Point:
        """The programme `min sum(c² - slope * c)`: rank by rank, best over how many of the samples were given out."""
        best = np.full(self._room + 1, np.inf)
        best[0] = 0.0
        choices = []
        for options in self._options:
            width = len(options)
            padded = np.concatenate((np.full(width - 1, np.inf), best))
            sums = sliding_window_view(padded, width) + (options * (options - slope))[::-1]
            choice = sums.argmin(axis=1)
            best = sums[np.arange(len(sums)), choice]
            choices.append(width - 1 - choice)
        moved = np.zeros(len(choices), dtype=np.int64)
        left = self._room
        for rank in range(len(choices) - 1, -1, -1):
            moved[rank] = choices[rank][left]
            left -= int(moved[rank])
        counts = self._origin + self._sign * moved
        costs = self._costs[np.arange(len(counts)), counts - 1]
        return _Point(counts, float(costs.sum()), float((costs * costs).sum()))

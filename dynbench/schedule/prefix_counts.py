"""How many samples each rank takes from the front of its buffer.

With c_g(k) the cost of rank g's first k samples, non-decreasing in k, choose counts b_g >= 1 that add up to B: least
maximum of c_g(b_g), then least variance over ranks. All counts are tried where there are few, which is the reference.

Otherwise the tie is broken so: the variance is concave in (S1, S2) = (sum of costs, sum of squared costs), so its
minimum is a vertex of the lower hull of the reachable points, and the best vertex minimises the separable
sum of (c² - lambda * c) at lambda = 2 * S1 / G, the variance's own gradient. S1 does not fall as lambda rises, which
confines that fixed point; each value of lambda is one programme over ranks and samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dynbench.errors import UsageError
from dynbench.schedule.plan import Exactness, FloatArray, IntArray, integers

REFERENCE_LIMIT = 2_000_000
"""Most plans that the solver `enumerate` tries."""


def number_of_counts(lower: IntArray, upper: IntArray, total: int, enough: float) -> float:
    """How many integer vectors between two bounds add up to a total; a float, as it may be huge.

    Args:
        lower: shape [G].
        upper: shape [G].
        total: what each vector adds up to.
        enough: counting ends above this, with a number that is not too large.
    """
    room = total - int(lower.sum())
    if room < 0:
        return 0.0
    ways = np.ones(1)
    widths = np.minimum(upper - lower, room)
    after = int(widths.sum())
    for width in widths.tolist():
        ways = np.convolve(ways, np.ones(width + 1))[: room + 1]
        after -= width
        # What these ranks took leaves the later ones something they can take in one way at least.
        least = float(ways[max(0, room - after) :].sum())
        if least > enough:
            return least
    return float(ways[room]) if room < len(ways) else 0.0


def all_counts(lower: IntArray, upper: IntArray, total: int) -> IntArray:
    """All integer vectors between two bounds that add up to a total, in lexicographic order, shape [n, G]."""
    least_after, most_after = (np.cumsum(bound[::-1])[::-1] - bound for bound in (lower, upper))
    columns: list[IntArray] = []
    left = integers([total])
    for rank in range(len(lower)):
        low = np.maximum(lower[rank], left - most_after[rank])
        high = np.minimum(upper[rank], left - least_after[rank])
        options = np.maximum(high - low + 1, 0)
        parent = np.repeat(np.arange(len(left)), options)
        first = np.cumsum(options) - options
        chosen = np.arange(len(parent)) - first[parent] + low[parent]
        columns = [column[parent] for column in columns]
        columns.append(chosen)
        left = left[parent] - chosen
    return np.stack(columns, axis=1)


def room_of(costs: FloatArray) -> IntArray:
    """Most samples that each rank may take: its finite costs [G, K]; shape [G]."""
    counts: IntArray = np.isfinite(costs).sum(axis=1)
    return counts


def costs_of(costs: FloatArray, counts: IntArray) -> FloatArray:
    """Cost per rank of each count vector: costs [G, K], counts [n, G] at least 1; shape [n, G]."""
    return costs[np.arange(costs.shape[0]), counts - 1]


def check_enumerable(most: IntArray, global_batch: int) -> None:
    """Refuse more plans than `enumerate` tries.

    Args:
        most: samples that each rank may take, at least 1, shape [G].
        global_batch: samples in all (B).

    Raises:
        UsageError: more than `REFERENCE_LIMIT`.
    """
    if number_of_counts(np.ones_like(most), most, global_batch, REFERENCE_LIMIT) > REFERENCE_LIMIT:
        raise UsageError(
            f"schedule.solver: enumerate would try more than {REFERENCE_LIMIT:,} plans",
            "Use solver=exact, or fewer ranks, a smaller global batch or buffer.",
        )


def least_by_enumeration(allowed: FloatArray, global_batch: int) -> IntArray:
    """Counts of least maximum, then least variance, among all, shape [G].

    Args:
        allowed: costs, infinite beyond each rank's limit, shape [G, K].
        global_batch: samples in all (B).

    Raises:
        UsageError: more than `REFERENCE_LIMIT` plans.
    """
    upper = np.minimum(room_of(allowed), global_batch)
    check_enumerable(upper, global_batch)
    counts = all_counts(np.ones_like(upper), upper, global_batch)
    costs = costs_of(allowed, counts)
    slowest = costs.max(axis=1)
    best = np.flatnonzero(slowest == slowest.min())
    return np.asarray(counts[best[costs[best].var(axis=1).argmin()]])


ENUMERATION_LIMIT = 20_000
"""Largest ranks * plans that are enumerated inline."""
PROGRAMME_LIMIT = 2**17
"""Largest ranks * (samples * counts + 256) of one programme that is run inline (256 stands for a layer's overhead);
beyond, the tie is not broken exactly."""

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
        return most
    lower, upper = np.maximum(1, most - spare), most
    largest = float(allowed[np.arange(len(upper)), upper - 1].max())
    # The variance does not change with a shift; small numbers round less.
    scaled = allowed / (largest or 1.0) - 1.0
    room = min(spare, global_batch - int(lower.sum()))
    width = min(int((upper - lower).max()), room) + 1
    if len(lower) * number_of_counts(lower, upper, global_batch, ENUMERATION_LIMIT) <= ENUMERATION_LIMIT:
        counts = all_counts(lower, upper, global_batch)
        return np.asarray(counts[costs_of(scaled, counts).var(axis=1).argmin()])
    if len(lower) * ((room + 1) * width + 256) > PROGRAMME_LIMIT:
        return None
    return _Hull(scaled, lower, upper, global_batch).least()


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
        moved: list[int] = []
        for choice in reversed(choices):
            moved.append(int(choice[self._room - sum(moved)]))
        counts = self._origin + self._sign * np.array(moved[::-1])
        costs = self._costs[np.arange(len(counts)), counts - 1]
        return _Point(counts, float(costs.sum()), float((costs * costs).sum()))


Solver = Literal["exact", "enumerate", "greedy"]


@dataclass(frozen=True, slots=True)
class PrefixSolution:
    """Counts per rank, shape [G], and what is proven about them."""

    counts: IntArray
    exact: Exactness


def solve_counts(costs: FloatArray, global_batch: int, solver: Solver = "exact") -> PrefixSolution:
    """Counts of one step.

    Args:
        costs: cost of each rank's first 1, 2, …, K samples, non-decreasing along a row, infinite where it does not
            fit, shape [G, K]; a rank's first fits, and B together.
        global_batch: samples to take in all (B), at least G.
        solver: `exact`; `enumerate`, the reference for small cases; or `greedy`.

    Raises:
        UsageError: too many plans for `enumerate`.
    """
    return _SOLVERS[solver](costs, global_batch)


def solve_exact(allowed: FloatArray, global_batch: int) -> PrefixSolution:
    """Least maximum at any size, least variance up to a stated size; beyond, the greedy counts reach the maximum."""
    most = np.count_nonzero(allowed <= least_threshold(allowed, global_batch), axis=1)
    counts = least_variance(allowed, most, global_batch)
    if counts is None:
        return solve_greedy(allowed, global_batch)
    return PrefixSolution(counts, "both")


def solve_greedy(allowed: FloatArray, global_batch: int) -> PrefixSolution:
    """Give the next sample to the rank whose next cost is least, the lower rank first among equals.

    Rows do not decrease, so that rule takes the B - G smallest costs beyond each rank's first, and its maximum is the
    least there is.
    """
    following, extra = allowed[:, 1:], global_batch - len(allowed)
    last = np.partition(following, extra - 1, axis=None)[extra - 1] if extra else -np.inf
    counts = 1 + np.count_nonzero(following < last, axis=1)
    ties = np.count_nonzero(following == last, axis=1)
    before = np.cumsum(ties) - ties
    return PrefixSolution(counts + np.clip(global_batch - int(counts.sum()) - before, 0, ties), "maximum")


def solve_enumerate(allowed: FloatArray, global_batch: int) -> PrefixSolution:
    """Both objectives by trying every plan."""
    return PrefixSolution(least_by_enumeration(allowed, global_batch), "both")


def least_threshold(allowed: FloatArray, global_batch: int) -> float:
    """The least maximum: every rank takes one sample, and B costs are at or below it.

    The search over the G*K candidates is a selection: rows do not decrease, so the candidates at or below a
    threshold are exactly the samples that it lets the ranks take.
    """
    everything = np.partition(allowed, global_batch - 1, axis=None)
    return max(float(everything[global_batch - 1]), float(allowed[:, 0].max()))


_SOLVERS: dict[Solver, Callable[[FloatArray, int], PrefixSolution]] = {
    "exact": solve_exact,
    "enumerate": solve_enumerate,
    "greedy": solve_greedy,
}

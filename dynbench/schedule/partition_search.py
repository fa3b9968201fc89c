"""The least maximum over equal ranks: a threshold search with one greedy sweep from the longest sample.

Why contiguous in sorted length is enough: order the groups of any split by their longest sample and give the first
as many samples from the top as it had, the next as many from there, and so on. No group's count changes and none's
longest sample grows, so no cost non-decreasing in length grows and no capacity non-increasing in length breaks.
Given a threshold T, taking as many as T and the capacity allow, from the longest on, reaches furthest; so T is
feasible when G groups reach the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray

_NARROWING = 9
"""Halvings with quick sweeps before the exact ones of a search over real numbers."""


def sort_longest_first(lengths: IntArray) -> IntArray:
    """Positions by falling length, ties by position, shape [n]; the same on every machine (its keys are unique)."""
    bits = len(lengths).bit_length()
    keys = (int(lengths.max()) - lengths) << bits
    keys |= np.arange(len(lengths), dtype=np.int64)
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def search_weights(cost: CostModel, lengths: IntArray) -> IntArray | FloatArray:
    """What one more sample costs, as `least_maximum` wants it: a group's cost is a monotone function of n times it."""
    return lengths if cost.cost_type in ("tokens", "tokens_sq") else cost.per_sample(lengths)


def least_maximum(weights: IntArray | FloatArray, ranks: int, limits: IntArray | None = None) -> list[int] | None:
    """Sizes of contiguous groups with the least maximum of count times first weight.

    Args:
        weights: what one more sample costs, sorted falling, shape [B]; integers are searched exactly, real numbers
            until the next smaller candidate is infeasible.
        ranks: groups (G), at most B.
        limits: largest group that may begin at each position, non-decreasing, shape [B]; none by default.

    Returns:
        G sizes, each at least 1, the longest samples' group first; None when the limits cannot hold B samples.
    """
    size = len(weights)
    if limits is not None and reach(limits, ranks) < size:
        return None
    floor = max(float(weights.sum()) / ranks, float(weights[0]))
    if np.issubdtype(weights.dtype, np.integer):
        threshold: float = _search_integers(np.ascontiguousarray(weights), ranks, limits, int(-(-floor // 1)))
    else:
        threshold = _search_reals(np.asarray(weights, dtype=np.float64), ranks, limits, floor)
    return _share_out(_cells(weights), None if limits is None else _cells(limits), size, ranks, threshold)


def largest_groups(weights: IntArray | FloatArray, counts: Sequence[int], limits: IntArray | None = None) -> IntArray:
    """Largest group that may begin at each position without raising the maximum of these counts, shape [B]."""
    starts = np.cumsum([0, *counts[:-1]])
    peak = (weights[starts] * np.asarray(counts)).max()
    size = len(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(weights > 0, np.minimum(np.floor(peak / weights), size), size).astype(np.int64)
    # The quotient is rounded; the products decide.
    most += (most + 1) * weights <= peak
    most -= most * weights > peak
    most = np.minimum(most, size - np.arange(size))
    return most if limits is None else np.minimum(most, limits)


def reach(limits: IntArray, ranks: int) -> int:
    """Samples, from the longest on, that `ranks` groups hold at most under the limits alone."""
    cells, size, start = _cells(limits), len(limits), 0
    for _ in range(ranks):
        if start >= size or cells[start] == 0:
            break
        start += cells[start]
    return min(start, size)


def _cells(values: IntArray | FloatArray) -> memoryview:
    """Numbers that Python indexes without making numpy scalars."""
    return np.ascontiguousarray(values).data


def _search_integers(weights: IntArray, ranks: int, limits: IntArray | None, floor: int) -> int:
    """Least feasible threshold, by galloping up from the bound and halving."""
    cells, size = weights.data, len(weights)
    caps = None if limits is None else _cells(limits)

    def feasible(threshold: int) -> bool:
        if caps is None:
            return _reaches_end(cells, size, ranks, threshold)
        return len(_sweep(cells, caps, size, ranks, threshold)[0]) > 0

    low, high, stride = floor, floor, max(1, floor // 32)
    while not feasible(high):
        low, high, stride = high + 1, high + stride, stride * 2
    while low < high:
        middle = (low + high) // 2
        if feasible(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _search_reals(weights: FloatArray, ranks: int, limits: IntArray | None, floor: float) -> float:
    """Least feasible candidate: the interval's ends are moved to costs that a sweep meets, until they meet."""
    cells, size = np.ascontiguousarray(weights).data, len(weights)
    caps = None if limits is None else _cells(limits)
    low, high = floor, floor
    if caps is None and cells[size - 1] > np.finfo(np.float64).tiny:
        low, high = _narrow(1.0 / weights, ranks, floor)
    stride = max(floor / 32, float(weights[0]) / 32)
    while True:
        counts, peak, following = _sweep(cells, caps, size, ranks, high)
        if counts:
            high = peak
            break
        low, high, stride = following, max(high + stride, following), stride * 2
    while low < high:
        middle = (low + high) / 2
        counts, peak, following = _sweep(cells, caps, size, ranks, middle if middle < high else low)
        if counts:
            high = peak
        else:
            low = following
    return high


def _narrow(inverse: FloatArray, ranks: int, floor: float) -> tuple[float, float]:
    """An interval that holds the least threshold, from sweeps with rounded quotients; wider than their rounding."""
    cells, size = np.ascontiguousarray(inverse).data, len(inverse)
    low, high, stride = floor, floor, floor / 32
    while not _reaches_end_real(cells, size, ranks, high):
        low, high, stride = high, high + stride, stride * 2
    for _ in range(_NARROWING):
        middle = (low + high) / 2
        if _reaches_end_real(cells, size, ranks, middle):
            high = middle
        else:
            low = middle
    return max(floor, low * (1 - 1e-9)), high * (1 + 1e-9)


def _share_out(cells: memoryview, caps: memoryview | None, size: int, ranks: int, threshold: float) -> list[int]:
    """Greedy group sizes within a feasible threshold, one sample kept back for each group still to come."""
    counts: list[int] = []
    start = 0
    for left in range(ranks - 1, -1, -1):
        weight = cells[start]
        count = int(threshold / weight) if weight else size
        if (count + 1) * weight <= threshold:
            count += 1
        elif count * weight > threshold:
            count -= 1
        if caps is not None and caps[start] < count:
            count = caps[start]
        if count > size - start - left:
            count = size - start - left
        counts.append(count)
        start += count
    return counts


def _reaches_end(cells: memoryview, size: int, ranks: int, threshold: int) -> bool:
    """True when `ranks` greedy groups within an integer threshold take all samples."""
    start = 0
    for _ in range(ranks):
        start += threshold // cells[start]
        if start >= size:
            return True
    return False


def _reaches_end_real(inverse: memoryview, size: int, ranks: int, threshold: float) -> bool:
    """As `_reaches_end`, for real weights given as their inverses; wrong only within rounding."""
    start = 0
    for _ in range(ranks):
        start += int(threshold * inverse[start])
        if start >= size:
            return True
    return False


def _sweep(
    cells: memoryview, caps: memoryview | None, size: int, ranks: int, threshold: float
) -> tuple[list[int], float, float]:
    """Greedy group sizes within a threshold, their largest cost, and the next threshold that would change a group.

    The sizes are empty when the samples are not all taken.
    """
    counts: list[int] = []
    start, peak, following = 0, 0.0, float("inf")
    for _ in range(ranks):
        weight = cells[start]
        count = int(threshold / weight) if weight else size
        # The quotient is rounded; the products decide.
        if (count + 1) * weight <= threshold:
            count += 1
        elif count * weight > threshold:
            count -= 1
        if caps is not None and caps[start] < count:
            count = caps[start]
        else:
            following = min(following, (count + 1) * weight)
        peak = max(peak, min(count, size - start) * weight)
        if count == 0:
            return [], peak, following
        counts.append(count)
        start += count
        if start >= size:
            counts[-1] -= start - size
            return counts, peak, following
    return [], peak, following

"""Searching partitions for the least maximum, then the least total.

Why contiguous in sorted length is enough: order the groups of any split by their longest sample and give the first
as many samples from the top as it had, the next as many from there, and so on. No group's count changes and none's
longest sample grows, so no cost non-decreasing in length grows and no capacity non-increasing in length breaks.
Given a threshold T, taking as many as T and the capacity allow, from the longest on, reaches furthest; so T is
feasible when G groups reach the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray, integers

TABLE_LIMIT = 2**18
"""Largest ranks * samples * group size for which the programme is run; about a millisecond."""
_SLOPES = 5
"""Slopes of the lower bound on padded work, each an eighth of the one before."""


def fits_table(ranks: int, most: IntArray) -> bool:
    """True when the programme is small enough to be run inline."""
    return ranks * len(most) * int(most.max()) <= TABLE_LIMIT


def group_costs(cost: CostModel, lengths: IntArray, most: IntArray) -> FloatArray:
    """Costs of groups of 1 to M samples from each sorted position on, infinite above `most`; shape [B, M]."""
    sizes = np.arange(1, int(most.max()) + 1)
    costs = cost.cost_padded(sizes[None, :], lengths[:, None])
    costs[sizes[None, :] > most[:, None]] = np.inf
    return costs


def least_work(numbers: IntArray, weights: FloatArray, limits: IntArray, price: float) -> FloatArray:
    """A lower bound on the padded work of any split of the samples into so many groups; same shape as `numbers`.

    For a price p per group, let v(p) be the least of work plus p times groups over all splits: no split into m groups
    has less work than v(p) - p*m, for any p (Lagrange). A few prices are tried, with `price`, where the bound on work
    plus price is tight at its least, and 0, where it is the work without padding.

    Args:
        numbers: groups, shape [k].
        weights: work of one sample by sorted position, falling, shape [B]; a group of n from i on is n * weights[i].
        limits: largest group that may begin at each position, shape [B].
        price: of a group, where the bound is to be tight.
    """
    size = len(weights)
    steepest = float(weights[0]) * size / int(numbers[0])
    prices = np.array([0.0, price, *(steepest / 8.0**k for k in range(_SLOPES))])
    best = np.zeros((size + 1, len(prices)))
    counts = np.arange(1, size + 1)[:, None]
    for start in range(size - 1, -1, -1):
        most = min(int(limits[start]), size - start)
        best[start] = (best[start + 1 : start + 1 + most] + counts[:most] * weights[start]).min(axis=0) + prices
    bound: FloatArray = (best[0] - np.outer(numbers, prices)).max(axis=1)
    return bound


def least_total(costs: FloatArray, ranks: int) -> list[int]:
    """Sizes of contiguous groups with the least total cost.

    Backward over groups: f_g(i) = min over n of costs[i, n] + f_(g-1)(i + n), O(G * B * M). The exchange argument of
    `partition_search` keeps the total too, so contiguous is enough.

    Args:
        costs: cost of a group of n + 1 samples beginning at sorted position i, infinite where it is not allowed,
            shape [B, M].
        ranks: groups (G).

    Returns:
        G sizes; the longest samples' group first. A split must exist.
    """
    size, most = costs.shape
    best = np.full(size + most, np.inf)
    best[size] = 0.0
    choices = []
    for _ in range(ranks):
        after = costs + sliding_window_view(best[1:], most)[:size]
        choice = after.argmin(axis=1)
        best[:size] = after[np.arange(size), choice]
        best[size] = np.inf
        choices.append(choice)
    sizes, start = [], 0
    for choice in reversed(choices):
        sizes.append(int(choice[start]) + 1)
        start += sizes[-1]
    return sizes


def sort_longest_first(lengths: IntArray) -> IntArray:
    """Positions by falling length, ties by position, shape [n]; the same on every machine (its keys are unique)."""
    bits = len(lengths).bit_length()
    keys = (int(lengths.max()) - lengths) << bits
    keys |= np.arange(len(lengths))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def least_maximum(weights: FloatArray, ranks: int, limits: IntArray | None = None) -> list[int] | None:
    """Sizes of contiguous groups with the least maximum of count times first weight.

    Args:
        weights: what one more sample costs, sorted falling, shape [B].
        ranks: groups (G), at most B.
        limits: largest group that may begin at each position, non-decreasing, shape [B]; none by default.

    Returns:
        G sizes, each at least 1, the longest samples' group first; None when the limits cannot hold B samples.
    """
    if limits is not None and reach(limits, ranks) < len(weights):
        return None
    cells, caps = _cells(weights), None if limits is None else _cells(limits)
    bound = max(float(weights.sum()) / ranks, float(weights[0]))
    return at_least_threshold(partial(_sweep, cells, caps, ranks), bound)


def most_within(
    budgets: FloatArray, weights: FloatArray, limits: IntArray, before: FloatArray, slack: float = 0.0
) -> IntArray:
    """Largest group from each position on whose count times first weight, and what its samples cost besides, is within.

    Args:
        budgets: shape [K, 1].
        weights: as `least_maximum`, shape [B].
        limits: largest group at each position, shape [B] or [K, B].
        before: what all samples before each position cost besides, shape [B + 1].
        slack: relative, of the budgets.
    """
    size, places = len(weights), np.arange(len(weights))
    high = np.broadcast_to(np.minimum(limits, size - places), (len(budgets), size))
    low = np.zeros_like(high)
    while np.any(low < high):
        middle = (low + high + 1) // 2
        within = middle * weights + (before[places + middle] - before[:-1]) <= budgets * (1 + slack)
        low, high = np.where(within, middle, low), np.where(within, high, middle - 1)
    return low


def whole_quotients(budgets: FloatArray | float, weights: FloatArray, limits: IntArray | int) -> IntArray:
    """How often each weight is contained in a budget, as the rounded quotient has it, at most the limit; all broadcast.

    What weighs nothing is contained in any budget from 0 on as often as the limit allows, in one below 0 never.
    """
    with np.errstate(all="ignore"):
        counts = np.floor(budgets / weights)
    return integers(np.clip(np.where(np.isnan(counts), np.inf, counts), 0, limits))


def largest_groups(weights: FloatArray, counts: Sequence[int], limits: IntArray | None = None) -> IntArray:
    """Largest group that may begin at each position without raising the maximum of these counts, shape [B]."""
    starts = np.cumsum([0, *counts[:-1]])
    peak = (weights[starts] * np.asarray(counts)).max()
    size = len(weights)
    most = whole_quotients(peak, weights, size)
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


def _sweep(cells: memoryview, caps: memoryview | None, ranks: int, threshold: float) -> tuple[list[int] | None, float]:
    """Greedy group sizes within a threshold, one sample kept back for each group still to come, and their largest cost.

    Where they do not take all samples: None, and the next threshold that would change a group.
    """
    counts: list[int] = []
    size, start, peak, following = len(cells), 0, 0.0, np.inf
    for left in range(ranks - 1, -1, -1):
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
        if count > size - start - left:
            count = size - start - left
        if count == 0:
            return None, following
        peak = max(peak, count * weight)
        counts.append(count)
        start += count
    return (counts, peak) if start == size else (None, following)


Found = TypeVar("Found")

Trial = Callable[[float], tuple[Found | None, float]]
"""What a threshold allows with what it costs, at most the threshold; or None with the next larger cost that may do."""


def at_least_threshold(trial: Trial[Found], low: float) -> Found:
    """What the least feasible threshold allows; both ends are moved to costs that a trial meets, until they meet.

    Args:
        trial: tries a threshold; feasible from some threshold on.
        low: nothing below it is feasible, and the first to try; above 0.
    """
    best, high, stride = None, low, low / 32
    while best is None:
        best, met = trial(high)
        if best is None:
            low, high, stride = met, max(high + stride, met), stride * 2
    high = met
    while low < high:
        middle = (low + high) / 2
        found, met = trial(middle if middle < high else low)
        if found is None:
            low = met
        else:
            best, high = found, met
    return best

"""Second objective of `partition`: among the splits with the least maximum, the least total cost."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray

TABLE_LIMIT = 2**18
"""Largest ranks * samples * group size for which the programme is run; about a millisecond."""


def fits_table(ranks: int, most: IntArray) -> bool:
    """True when the programme is small enough to be run inline."""
    return ranks * len(most) * int(most.max()) <= TABLE_LIMIT


def group_costs(cost: CostModel, lengths: IntArray, most: IntArray) -> FloatArray:
    """Costs of groups of 1 to M samples from each sorted position on, infinite above `most`; shape [B, M]."""
    sizes = np.arange(1, int(most.max()) + 1)
    costs = cost.cost_padded(sizes[None, :], lengths[:, None])
    costs[sizes[None, :] > most[:, None]] = np.inf
    return costs


_SLOPES = 5
"""Slopes of the lower bound on padded work, each an eighth of the one before."""


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
    counts = np.arange(1, size + 1, dtype=np.float64)[:, None]
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
        best[:size] = np.take_along_axis(after, choice[:, None], axis=1)[:, 0]
        best[size] = np.inf
        choices.append(choice)
    sizes, start = [], 0
    for choice in reversed(choices):
        sizes.append(int(choice[start]) + 1)
        start += sizes[-1]
    return sizes

"""Counts by trying all of them: the reference of `prefix`, and its tie-break where there are few."""

from __future__ import annotations

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.plan import FloatArray, IntArray

REFERENCE_LIMIT = 2_000_000
"""Most plans that the solver `enumerate` tries."""


def number_of_counts(lower: IntArray, upper: IntArray, total: int, enough: float = np.inf) -> float:
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
    left = np.array([total], dtype=np.int64)
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
    return np.asarray(np.isfinite(costs).sum(axis=1), dtype=np.int64)


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
    if number_of_counts(np.ones_like(most), most, global_batch, enough=REFERENCE_LIMIT) > REFERENCE_LIMIT:
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
    lower = np.ones(len(allowed), dtype=np.int64)
    upper = np.minimum(room_of(allowed), global_batch)
    check_enumerable(upper, global_batch)
    counts = all_counts(lower, upper, global_batch)
    costs = costs_of(allowed, counts)
    slowest = costs.max(axis=1)
    best = np.flatnonzero(slowest == slowest.min())
    return np.asarray(counts[best[costs[best].var(axis=1).argmin()]])

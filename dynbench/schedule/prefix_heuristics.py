"""Rules of thumb for `prefix`, and how far they are from the exact counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dynbench.schedule.plan import FloatArray, IntArray
from dynbench.schedule.prefix_enumerate import room_of
from dynbench.schedule.prefix_solvers import solve_greedy


def equal_counts(allowed: FloatArray, global_batch: int) -> IntArray:
    """B/G samples to every rank, the remainder to the first ones, as far as the limits allow; shape [G]."""
    ranks = len(allowed)
    counts = np.full(ranks, global_batch // ranks, dtype=np.int64)
    counts[: global_batch % ranks] += 1
    return _fill(np.minimum(counts, room_of(allowed)), allowed, np.arange(ranks), global_batch)


def longest_first(allowed: FloatArray, global_batch: int) -> IntArray:
    """Ranks in falling order of their first sample, each filled up to the mean cost of equal counts; shape [G].

    Every rank keeps at least one sample; what is left at the end goes to the ranks with the shortest first samples.
    """
    ranks = len(allowed)
    equal = equal_counts(allowed, global_batch)
    target = float(allowed[np.arange(ranks), equal - 1].mean())
    order = np.argsort(-allowed[:, 0], kind="stable")
    counts = np.ones(ranks, dtype=np.int64)
    left = global_batch - ranks
    for rank in order:
        extra = min(left, max(0, int(np.count_nonzero(allowed[rank] <= target)) - 1))
        counts[rank] += extra
        left -= extra
    return _fill(counts, allowed, order[::-1], global_batch)


def _fill(counts: IntArray, allowed: FloatArray, order: IntArray, global_batch: int) -> IntArray:
    """Give what is missing to the ranks in this order, up to their limits."""
    limits = room_of(allowed)
    for rank in order:
        counts[rank] += min(global_batch - int(counts.sum()), int(limits[rank] - counts[rank]))
    return counts


HEURISTICS: dict[str, Callable[[FloatArray, int], IntArray]] = {
    "greedy": lambda allowed, global_batch: solve_greedy(allowed, global_batch).counts,
    "equal_counts": equal_counts,
    "longest_first": longest_first,
}
"""Counts [G] from costs [G, K] (infinite beyond each rank's limit) and the global batch."""


def gap(costs: FloatArray, counts: IntArray, exact_counts: IntArray) -> tuple[float, float]:
    """How much worse counts [G] are than the exact ones at costs [G, K], in units of the exact maximum.

    Returns:
        (max - exact max) / exact max, and (variance - exact variance) / (exact max)²; the second may be negative where
        the maximum is larger.
    """
    ranks = np.arange(len(costs))
    ours, exact = costs[ranks, counts - 1], costs[ranks, exact_counts - 1]
    largest = float(exact.max())
    return (float(ours.max()) - largest) / largest, (float(ours.var()) - float(exact.var())) / largest**2

"""How many samples each rank takes from the front of its buffer.

With c_g(k) the cost of rank g's first k samples, non-decreasing in k, choose counts b_g >= 1 that add up to B: least
maximum of c_g(b_g), then least variance over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dynbench.schedule.plan import Exactness, FloatArray, IntArray
from dynbench.schedule.prefix_enumerate import least_by_enumeration
from dynbench.schedule.prefix_variance import least_variance

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
    ranks = len(allowed)
    counts = np.ones(ranks, dtype=np.int64)
    extra = global_batch - ranks
    if extra:
        following = allowed[:, 1:]
        last = np.partition(following, extra - 1, axis=None)[extra - 1]
        counts += np.count_nonzero(following < last, axis=1)
        ties = np.count_nonzero(following == last, axis=1)
        before = np.cumsum(ties) - ties
        counts += np.clip(global_batch - int(counts.sum()) - before, 0, ties)
    return PrefixSolution(counts, "maximum")


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

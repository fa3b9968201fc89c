"""How far two runs did the same work: in every step, in every window of steps, or only on the same data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pairing import Pair

Level = Literal["step", "window", "stream"]

LEVELS: tuple[Level, ...] = ("step", "window", "stream")
"""Strongest first."""


def comparison_level(pairs: Sequence[Pair]) -> Level:
    """The weakest level among the pairs, measured from the work hashes of all steps, warm-up included."""
    return weakest(work_level(a, b) for a, b in pairs)


def weakest(levels: Iterable[Level]) -> Level:
    """The weakest of several levels."""
    return max(levels, key=LEVELS.index)


def work_level(a: MergedRun, b: MergedRun) -> Level:
    """How far two launches of the same data, seed and global batch computed the same samples."""
    gap = largest_gap(a, b)
    if gap == 1:
        return "step"
    window = max(a.facts.window, b.facts.window)
    return "window" if gap is not None and gap <= window else "stream"


def largest_gap(a: MergedRun, b: MergedRun) -> int | None:
    """Most steps between two points up to which both launches have computed the same samples.

    At such a point the sums of all work hashes so far are equal. Windows begin anew with every epoch, so the points
    need not lie at multiples of W, but never further apart. 1 when every step agrees; None when the launches never
    agree, do not have the same steps, or have a hole in them.
    """
    steps = a.steps["step"].to_numpy()
    if len(steps) == 0 or not np.array_equal(steps, np.arange(len(steps))) or b.steps.height != len(steps):
        return None
    if not np.array_equal(steps, b.steps["step"].to_numpy()):
        return None
    ahead = np.cumsum(a.steps["work_hash"].to_numpy() - b.steps["work_hash"].to_numpy(), dtype=np.uint64)
    agreements = np.flatnonzero(ahead == 0)
    if not len(agreements):
        return None
    gaps = np.diff(np.concatenate(([-1], agreements)))
    unfinished = len(steps) - int(agreements[-1])
    return max(int(gaps.max()), unfinished)


def loss_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest relative difference of the global loss of a step between the launches of a pair.

    None where a loss is not finite: there is nothing to compare then.
    """
    worst = 0.0
    for a, b in pairs:
        left, right = a.steps["loss_global"].to_numpy(), b.steps["loss_global"].to_numpy()
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return None
        scale = np.maximum(np.maximum(np.abs(left), np.abs(right)), np.finfo(np.float64).tiny)
        worst = max(worst, float((np.abs(left - right) / scale).max(initial=0.0)))
    return worst

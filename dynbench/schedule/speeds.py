"""Relative speeds of ranks as measurements give them: differences within the noise of a measurement count as none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.schedule.plan import FloatArray

SAME_SPEED = 0.9
"""A rank at least this fast, relative to the fastest of its class, belongs to the class."""


def distinct_speeds(measured: Sequence[float] | FloatArray) -> FloatArray | None:
    """Speeds of the classes that the ranks fall into.

    From the fastest rank down, a class holds the ranks within `SAME_SPEED` of its fastest and has their median speed.
    Few classes keep the plans exact (see `partition_unequal`) and still where measurements only repeat themselves.

    Args:
        measured: speeds in any unit, positive, shape [G].

    Returns:
        Relative speeds, 1 for the fastest class, shape [G]; None when all ranks are of one class.
    """
    speeds = np.asarray(measured, dtype=np.float64)
    rest = np.argsort(-speeds, kind="stable")
    grouped = np.empty_like(speeds)
    while len(rest):
        alike = speeds[rest] >= SAME_SPEED * speeds[rest[0]]
        grouped[rest[alike]] = np.median(speeds[rest[alike]])
        rest = rest[~alike]
    return None if grouped.min() == grouped.max() else grouped / grouped.max()

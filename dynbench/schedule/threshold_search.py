"""The least feasible threshold among costs that can occur: galloping up, then halving between two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

Trial = Callable[[float], tuple[Found | None, float]]
"""What a threshold allows with what it costs, at most the threshold; or None with the next larger cost that may do."""


def at_least_threshold(trial: Trial[Found], low: float, high: float) -> Found:
    """What the least feasible threshold allows; both ends are moved to costs that a trial meets, until they meet.

    Args:
        trial: tries a threshold; feasible from some threshold on.
        low: nothing below it is feasible; above 0.
        high: the first threshold to try.
    """
    best, stride = None, low / 32
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

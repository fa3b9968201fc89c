"""Ranks of equal speed and capacity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from dynbench.schedule.plan import FloatArray, IntArray

SAME_SPEED = 0.9
"""A rank at least this fast, relative to the fastest of its class, belongs to the class."""
_NOWHERE = -1


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


Path = list[tuple[int, int]]
"""(class, samples) of every rank, the longest samples first."""


class ClassSearch:
    """A programme over how many ranks of each class have been used; a state keeps the furthest sample reached.

    States with k ranks used form layer k; all of a layer are advanced at once.

    Args:
        sizes: ranks per class, shape [C].
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._ranks, shape = sum(sizes), tuple(size + 1 for size in sizes)
        used = np.indices(shape).reshape(len(sizes), -1)
        self._before = np.arange(prod(shape)) - _strides(shape)[:, None]
        """State before the last rank, by its class, shape [C, S]; `_NOWHERE` where that class was not used."""
        self._before[used == 0] = _NOWHERE
        total = used.sum(axis=0)
        self._layers = [np.flatnonzero(total == k) for k in range(1, self._ranks + 1)]

    @staticmethod
    def states(sizes: Iterable[int]) -> int:
        """States of the programme for these class sizes."""
        return prod(size + 1 for size in sizes)

    def path(self, takes: IntArray) -> Path | None:
        """Order and counts that take all samples, at least one per rank; None when there are none.

        Args:
            takes: most samples of a rank by class and sorted position, shape [C, B]; non-decreasing along positions,
                apart from the end of the samples.
        """
        size = takes.shape[1]
        classes = np.arange(len(takes))[:, None]
        # One more column for states that are nowhere: index -1 is the last.
        padded = np.append(takes, np.zeros_like(takes[:, :1]), axis=1)
        reached = np.full(self._before.shape[1] + 1, _NOWHERE)
        reached[0] = 0
        came_from = np.zeros(len(reached), dtype=np.int64)
        for used, layer in enumerate(self._layers, 1):
            start = reached[self._before[:, layer]]
            count = padded[classes, start]
            end = np.where(count > 0, np.minimum(start + count, size - self._ranks + used), _NOWHERE)
            came_from[layer] = best = end.argmax(axis=0)
            reached[layer] = end[best, np.arange(len(layer))]
        state = len(reached) - 2
        if reached[state] < size:
            return None
        path: Path = []
        while state:
            kind = int(came_from[state])
            before = int(self._before[kind, state])
            path.append((kind, int(reached[state] - reached[before])))
            state = before
        return path[::-1]


def sweep_order(takes: IntArray, order: Sequence[int]) -> Path | None:
    """As `ClassSearch.path`, for one fixed order of the ranks' classes."""
    size, start, path = takes.shape[1], 0, []
    for left, kind in zip(range(len(order) - 1, -1, -1), order, strict=True):
        count = min(int(takes[kind, start]), size - left - start)
        if count == 0:
            return None
        path.append((kind, count))
        start += count
    return path if start == size else None


def _strides(shape: tuple[int, ...]) -> IntArray:
    """Distance in the flat index of one more rank of each class."""
    return np.array([prod(shape[axis + 1 :]) for axis in range(len(shape))])

"""`partition` for ranks of unequal speed or capacity.

A best split is contiguous in sorted length for some order of the ranks (the exchange argument of `partition_search`
changes no rank's count); where samples have a second cost, such a split is a heuristic. Given a threshold T, the ranks
used so far should have reached as far as possible: a later start never allows less. So T is feasible when all ranks,
used in some order, reach the end; `ClassSearch` finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import batch_too_large, sample_too_long
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import batch_bound
from dynbench.schedule.partition_search import at_least_threshold, most_within, whole_quotients
from dynbench.schedule.plan import Exactness, FloatArray, IntArray, floats, stable_argsort
from dynbench.schedule.policy import Problem

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
    speeds = floats(measured)
    rest = stable_argsort(-speeds)
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
        used = np.indices(shape).reshape(len(sizes), prod(shape))
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
        came_from = np.zeros_like(reached)
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
    for used, kind in enumerate(order, 1):
        count = min(int(takes[kind, start]), size - (len(order) - used) - start)
        if count == 0:
            return None
        path.append((kind, count))
        start += count
    return path if start == size else None


def _strides(shape: tuple[int, ...]) -> IntArray:
    """Distance in the flat index of one more rank of each class."""
    return np.array([prod(shape[axis + 1 :]) for axis in range(len(shape))])


STATE_LIMIT = 4096
"""Largest product of (ranks + 1) over the classes that is searched exactly: 12 ranks all different, or 63 and 63."""
COARSE = 1e-3
"""Relative distance of two thresholds that are tried where samples have a second cost: what they give is polished."""


class UnequalRanks:
    """Splits of a batch over ranks that differ in speed or capacity.

    Exact in the maximum up to `STATE_LIMIT`. Beyond it the ranks are swept in four fixed orders (by speed and by
    capacity, both ways) and the least threshold at which one of them reaches the end is kept; not proven.

    Args:
        problem: ranks of equal speed and capacities form a class.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        speeds = problem.relative_speeds()
        kinds = [(float(speed), problem.capacity.row(rank)) for rank, speed in enumerate(speeds)]
        classes = sorted(set(kinds), reverse=True)
        self._members = [[rank for rank, kind in enumerate(kinds) if kind == one] for one in classes]
        self._speeds = np.array([speed for speed, _ in classes])
        self._exact = ClassSearch.states(map(len, self._members)) <= STATE_LIMIT
        self._search = ClassSearch(tuple(map(len, self._members))) if self._exact else None
        by_speed = [kind for kind, members in enumerate(self._members) for _ in members]
        by_capacity = sorted(by_speed, key=lambda kind: classes[kind][1][-1])
        self._orders = (by_speed, by_speed[::-1], by_capacity, by_capacity[::-1])

    def groups(
        self, ids: IntArray, lengths: IntArray, step: int, extra: FloatArray | float = 0.0
    ) -> tuple[list[IntArray], Exactness]:
        """Sample ids per rank.

        Args:
            ids: samples, longest first, shape [B].
            lengths: their padded lengths, shape [B].
            step: optimizer step, for messages.
            extra: what they cost besides, shape [B], tokens.

        Raises:
            NothingFits: the capacities cannot hold the samples with at least one on every rank.
        """
        limits = self.check(ids, lengths, step)
        unused = [list(members) for members in self._members]
        groups = [ids[:0]] * self._problem.workers
        start = 0
        for kind, count in self._least(lengths, limits, extra):
            groups[unused[kind].pop(0)] = ids[start : start + count]
            start += count
        return groups, "maximum" if self._exact and not np.any(extra) else "none"

    def check(self, ids: IntArray, lengths: IntArray, step: int) -> IntArray:
        """Largest group per class and position, shape [C, B]; raises what `groups` raises."""
        limits = np.stack([self._problem.capacity.limits_of(members[0], lengths) for members in self._members])
        limits = np.minimum(limits, len(ids))
        if self._path(limits) is None:
            raise self._misfit(ids, lengths, limits, step)
        return limits

    def _path(self, takes: IntArray) -> Path | None:
        """Classes and counts that take all samples, given the most that each class takes at each position."""
        if self._search is not None:
            return self._search.path(takes)
        paths = (sweep_order(takes, order) for order in self._orders)
        return next((path for path in paths if path is not None), None)

    def _least(self, lengths: IntArray, limits: IntArray, extra: FloatArray | float) -> Path:
        problem = self._problem
        times = _Times(problem.cost, lengths, self._speeds, limits, extra)
        low = batch_bound(lengths, problem.cost, problem.relative_speeds(), extra=extra)
        return _least_path(times, low, self._path)

    def _misfit(self, ids: IntArray, lengths: IntArray, limits: IntArray, step: int) -> NothingFits:
        if limits[:, 0].max() == 0:
            return sample_too_long(step, int(ids[0]), int(lengths[0]))
        for kind, members in enumerate(self._members):
            if limits[kind].max() == 0:
                return sample_too_long(step, int(ids[-1]), int(lengths[-1]), f"rank {members[0]}")
        ranks = self._problem.workers
        fails = range(ranks, len(ids))
        fitting = ranks - 1 + bisect_left(fails, True, key=lambda n: self._path(np.minimum(limits[:, :n], n)) is None)
        return batch_too_large(step, len(ids), fitting, may_split=False)


def even_sizes(cost: CostModel, lengths: IntArray, ranks: int, limits: IntArray, extra: FloatArray) -> list[int]:
    """Sizes of contiguous groups of least maximum over equal ranks, for samples that cost something besides.

    Args:
        cost: the cost model.
        lengths: padded, longest first, shape [B].
        ranks: groups, at most B, which the limits allow.
        limits: largest group that may begin at each position, shape [B].
        extra: what the samples cost besides, shape [B], tokens.
    """
    times = _Times(cost, lengths, np.ones(1), limits[None], extra)
    low = batch_bound(lengths, cost, np.ones(ranks), extra=extra)
    return [size for _, size in _least_path(times, low, lambda takes: sweep_order(takes, [0] * ranks))]


def _least_path(times: _Times, low: float, path_of: Callable[[IntArray], Path | None]) -> Path:
    """The path of the least threshold, at least `low`: found among the times that can occur."""

    def trial(threshold: float) -> tuple[Path | None, float]:
        takes, following = times.within(threshold)
        path = path_of(takes)
        return path, following if path is None else min(times.peak(path), threshold)

    return at_least_threshold(trial, low)


class _Times:
    """Time of a group by class, position of its longest sample and size.

    Args:
        cost: the cost model.
        lengths: padded, longest first, shape [B].
        speeds: per class, shape [C].
        limits: largest group per class and position, shape [C, B].
        extra: what the samples cost besides, shape [B], tokens; 0 for nothing.
    """

    def __init__(
        self, cost: CostModel, lengths: IntArray, speeds: FloatArray, limits: IntArray, extra: FloatArray | float = 0.0
    ) -> None:
        self._cost, self._lengths, self._speeds, self._limits = cost, lengths, speeds[:, None], limits
        self._weights = cost.per_sample(lengths)
        self._before = np.cumsum(np.append(0.0, extra)) if np.any(extra) else None

    def _time(self, counts: IntArray, starts: IntArray | slice = slice(None)) -> FloatArray:
        """Time at speed 1 of `counts` samples from these positions on, by default from each, shape [C, B]."""
        extra: FloatArray | float = 0.0
        if self._before is not None:
            first = np.arange(len(self._lengths))[starts]
            extra = self._before[np.minimum(first + counts, len(self._lengths))] - self._before[first]
        return self._cost.cost_padded(counts, self._lengths[starts], extra)

    def within(self, threshold: float) -> tuple[IntArray, float]:
        """Most samples within a threshold, shape [C, B], and the next threshold that allows more somewhere."""
        budget = self._cost.work_within(threshold * self._speeds)
        counts = whole_quotients(budget, self._weights, self._limits)
        if self._before is not None:
            besides = self._cost.per_sample(0.0, self._before)
            counts = most_within(budget, self._weights, np.minimum(counts + 1, self._limits), besides)
        # What was found is rounded; the times decide.
        counts -= self._time(counts) / self._speeds > threshold
        counts += (self._time(counts + 1) / self._speeds <= threshold) & (counts < self._limits)
        open_ = (self._time(counts + 1) / self._speeds)[counts < self._limits]
        # Beyond the threshold, also where its rounding leaves a count too small.
        further = np.nextafter(threshold, np.inf) if self._before is None else threshold * (1 + COARSE)
        return counts, max(float(open_.min()), further) if open_.size else np.inf

    def peak(self, path: Sequence[tuple[int, int]]) -> float:
        """The slowest group's time."""
        kinds, counts = np.array(path).T
        starts = np.cumsum(counts) - counts
        times = self._time(counts, starts) / self._speeds[kinds, 0]
        return float(times.max())

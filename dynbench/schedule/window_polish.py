"""The last step of a window's search: small changes of a found plan, many at a time, as long as one makes it cheaper.

A sweep (`window_sweep`) deals whole steps by their thresholds; here single shares change: a sample passes between two
shares of a step, or two shares of different steps, near each other in sorted length, change places. All of these are
priced at once, which takes a tenth of the time of as many sweeps, and the cheapest is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dynbench.schedule.plan import IntArray
from dynbench.schedule.window_sweep import SortedWindow

ROUNDS = 12
"""Changes made at most."""
REACH = 6
"""Places between two shares that change places, at most."""
PRICED = 2**15
"""Shares priced in a round, at most: changes times shares."""
CHECKED = 6
"""Cheapest changes of a round whose spread is looked at."""


def polished(
    window: SortedWindow,
    order: list[int],
    counts: list[int],
    is_spread: Callable[[IntArray], bool],
    rng: np.random.Generator,
) -> tuple[list[int], list[int]]:
    """Order and counts of a plan no dearer than the one given.

    Args:
        window: the samples.
        order: step of each share, shape [W*G].
        counts: samples of each share, shape [W*G]; within the capacities.
        is_spread: whether the steps' tokens before padding, shape [W], are spread too far.
        rng: draws the changes that are tried where there are many.
    """
    plan = _Plan(window, np.array(order), np.array(counts))
    for _ in range(ROUNDS):
        if not plan.change(is_spread, rng):
            break
    return plan.order.tolist(), plan.counts.tolist()


class _Plan:
    """Shares in order of falling length; `shares` are the places of each step's, shape [W, G]."""

    def __init__(self, window: SortedWindow, order: IntArray, counts: IntArray) -> None:
        self._window, self.order, self.counts = window, order, counts
        self._work, self._before = np.array(window.work), np.array(window.tokens_before)
        self._limits = None if window.limits is None else np.array(window.limits)
        self._shares = np.argsort(order, kind="stable")
        self._price = self._prices(counts[None], self._shares[None])[0][0]

    def change(self, is_spread: Callable[[IntArray], bool], rng: np.random.Generator) -> bool:
        """Make the change that lowers the price most and keeps to the spread; whether there was one."""
        counts, shares = self._changes(rng)
        prices, starts = self._prices(counts, shares)
        for index in np.argsort(prices, kind="stable")[:CHECKED].tolist():
            if prices[index] >= self._price:
                break
            tokens = self._before[starts[index] + counts[index]] - self._before[starts[index]]
            if is_spread(tokens[shares[index]].reshape(self._window.steps, -1).sum(axis=1)):
                continue
            self.counts, self._shares, self._price = counts[index], shares[index], prices[index]
            self.order[self._shares] = np.repeat(np.arange(self._window.steps), self._window.workers)
            return True
        return False

    def _changes(self, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Counts and shares by step after each change, shape [K, W*G]."""
        steps, workers, size = self._window.steps, self._window.workers, len(self.order)
        own, other = np.nonzero(~np.eye(workers, dtype=bool))
        by_step = self._shares.reshape(steps, workers)
        giving, taking = by_step[:, own].ravel(), by_step[:, other].ravel()
        first = np.repeat(np.arange(size), REACH)
        second = first + np.tile(np.arange(1, REACH + 1), size)
        near = np.flatnonzero(second < size)
        near = near[self.order[first[near]] != self.order[second[near]]]
        giving, taking = _some(np.flatnonzero(self.counts[giving] > 1), size, rng, giving, taking)
        first, second = _some(near, size, rng, first, second)
        counts = np.tile(self.counts, (len(giving) + len(first), 1))
        shares = np.tile(self._shares, (len(counts), 1))
        passed, swapped = np.arange(len(giving)), np.arange(len(giving), len(counts))
        counts[passed, giving] -= 1
        counts[passed, taking] += 1
        counts[swapped, first], counts[swapped, second] = self.counts[second], self.counts[first]
        places = np.empty(size, dtype=np.int64)
        places[self._shares] = np.arange(size)
        shares[swapped, places[first]], shares[swapped, places[second]] = second, first
        return counts, shares

    def _prices(self, counts: IntArray, shares: IntArray) -> tuple[IntArray, IntArray]:
        """Price of each plan, shape [K], beyond all where a share is above its capacity, and where its shares begin."""
        starts = np.cumsum(counts, axis=1) - counts
        costs = np.take_along_axis(counts * self._work[starts], shares, axis=1)
        dearest = costs.reshape(len(costs), self._window.steps, -1).max(axis=2)
        if self._window.cost.cost_type == "tokens_sq":
            dearest = dearest * dearest
        prices: IntArray = dearest.sum(axis=1)
        if self._limits is not None:
            prices[np.any(counts > self._limits[starts], axis=1)] = np.iinfo(np.int64).max
        return prices, starts


def _some(chosen: IntArray, size: int, rng: np.random.Generator, *columns: IntArray) -> tuple[IntArray, ...]:
    """The chosen entries of each column; a random part of them where all are more than half a round prices."""
    most = max(PRICED // 2 // size, 1)
    if len(chosen) > most:
        chosen = rng.choice(chosen, most, replace=False)
    return tuple(column[chosen] for column in columns)

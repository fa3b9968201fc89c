"""A window's samples, longest first, and how they are dealt: sweeps, first plans and their polishing.

In some best plan every share is contiguous in sorted length (the exchange argument of `partition_search`, which keeps
every share's step and count). So a plan is the order in which the steps take their shares, and the counts. Given a
threshold for a step, all its shares but the last take as many samples as cost at most that much: what is taken early
makes every later share shorter. The last share takes what is left of the step's B samples.

In a good plan all shares of a step cost about the same. Long samples are the hard part: a share holds few of them, so
what it costs is a multiple of their length. The thresholds of first plans are therefore spread a little, and a share of
long samples goes to a step whose threshold it fills. Short samples fill anything: the shares that come last only have
to bring every step to B samples.

A sweep deals whole steps by their thresholds; polishing changes single shares: a sample passes between two shares of a
step, or two shares of different steps, near each other in sorted length, change places. All of these are priced at
once, which takes a tenth of the time of as many sweeps, and the cheapest is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import IntArray, integers, stable_argsort

WORK_RESOLUTION = 2**20
"""Units of work in the largest sample, for costs that are no whole numbers."""


class Deal(NamedTuple):
    """A plan of a window; its shares stand in order of falling length."""

    order: list[int]
    """Step of each share, shape [W*G]."""
    thresholds: list[int]
    """Most that a share of each step may cost, its last share excepted, shape [W], work."""
    counts: list[int]
    """Samples of each share, shape [W*G]."""
    heads: list[int]
    """Dearest share of each step, its last share excepted, shape [W], work."""
    lasts: list[int]
    """Cost of each step's last share, shape [W], work."""
    excess: int
    """Samples above the capacities, summed over the shares."""


@dataclass(frozen=True)
class SortedWindow:
    """The samples of W global batches, longest first, and what they cost in whole units of work.

    Args:
        lengths: tokens before padding, falling, shape [W*B].
        steps: global batches in the window (W).
        workers: ranks that train, all alike (G).
        cost: predicted cost of a micro-batch.
        limits: largest share that may begin at each sample, non-decreasing, shape [W*B]; None for no limit.
    """

    lengths: IntArray
    steps: int
    workers: int
    cost: CostModel
    limits: list[int] | None = None

    @property
    def global_batch(self) -> int:
        """Samples of each step (B)."""
        return len(self.lengths) // self.steps

    @property
    def power(self) -> int:
        """Of a share's work that it costs."""
        return 2 if self.cost.cost_type == "tokens_sq" else 1

    @cached_property
    def work(self) -> list[int]:
        """What one more sample costs, falling, shape [W*B]: tokens as they are, other costs rounded."""
        per_sample = self.cost.per_sample(self.cost.padded(self.lengths))
        if self.cost.cost_type not in ("tokens", "tokens_sq") and per_sample[0] > 0:
            per_sample = np.rint(per_sample / per_sample[0] * WORK_RESOLUTION)
        work: list[int] = integers(np.maximum(per_sample, 1)).tolist()
        return work

    @cached_property
    def tokens_before(self) -> list[int]:
        """Tokens of all longer samples, shape [W*B + 1]."""
        before: list[int] = np.concatenate(([0], np.cumsum(self.lengths))).tolist()
        return before

    def price(self, deal: Deal) -> int:
        """Sum over the steps of the dearest share's work, by `power`."""
        power = self.power
        return sum(work**power for work in map(max, deal.heads, deal.lasts))

    def step_tokens(self, deal: Deal) -> list[int]:
        """Tokens of each step before padding, shape [W]."""
        before, tokens, start = self.tokens_before, [0] * self.steps, 0
        for share, step in enumerate(deal.order):
            end = start + deal.counts[share]
            tokens[step] += before[end] - before[start]
            start = end
        return tokens

    def sweep(self, order: list[int], thresholds: list[int]) -> Deal:
        """Deal all samples: exactly B to every step and at least one to every share.

        Where capacity is scarce a share takes more than its threshold allows, lest the later ones overflow.

        Args:
            order: step of each share, longest samples first, every step G times, shape [W*G].
            thresholds: most that a share may cost, its step's last share excepted, shape [W], work.
        """
        work, limits = self.work, self.limits
        shares_left = [self.workers] * self.steps
        room = [self.global_batch] * self.steps
        heads, lasts = [0] * self.steps, [0] * self.steps
        counts: list[int] = []
        start = excess = 0
        for step in order:
            unit, after = work[start], shares_left[step] - 1
            if after:
                shares_left[step] = after
                count, most = thresholds[step] // unit, room[step] - after
                if limits is not None:
                    count = min(max(count, room[step] - after * limits[-1]), limits[start])
                if count > most:
                    count = most
                elif count < 1:
                    count = 1
                room[step] -= count
                spent = count * unit
                if spent > heads[step]:
                    heads[step] = spent
            else:
                count = room[step]
                lasts[step] = count * unit
            if limits is not None and count > limits[start]:
                excess += count - limits[start]
            start += count
            counts.append(count)
        return Deal(order, thresholds, counts, heads, lasts, excess)


THRESHOLD_SPREAD = 0.03
"""Relative distance of the outermost thresholds from the middle."""
GOOD_FILL = 0.85
"""A share that fills less than this of every open step's threshold opens another step."""
ROUNDS = 12
"""Changes made at most."""
REACH = 6
"""Places between two shares that change places, at most."""
PRICED = 2**15
"""Shares priced in a round, at most: changes times shares."""
CHECKED = 6
"""Cheapest changes of a round whose spread is looked at."""


def guesses(window: SortedWindow, slack_tokens: float) -> Iterator[Deal]:
    """Plans to start a search from, neither checked for capacity nor for spread.

    Args:
        window: the samples.
        slack_tokens: how far a step's tokens may lie above the mean.
    """
    base, spacing = _even_threshold(window), 2 * THRESHOLD_SPREAD / max(window.steps - 1, 1)
    thresholds = [max(int(base * (1 + THRESHOLD_SPREAD - spacing * step)), 1) for step in range(window.steps)]
    yield _by_rounds(window, thresholds)
    yield _by_opening(window, thresholds, slack_tokens)


def _even_threshold(window: SortedWindow) -> float:
    """About the least threshold at which W*G shares, each of at least one sample, take all samples."""
    mean = sum(window.work) / (window.steps * window.workers)
    tried = np.linspace(mean, 2 * mean, 257)[1:]
    return float(tried[bisect_left(tried[:-1], True, key=lambda threshold: _reaches_end(window, int(threshold)))])


def _reaches_end(window: SortedWindow, threshold: int) -> bool:
    work, start = window.work, 0
    for _ in range(window.steps * window.workers):
        start += threshold // work[start] or 1
        if start >= len(work):
            return True
    return False


class _Builder:
    """Takes shares one by one, longest samples first, as `SortedWindow.sweep` will."""

    def __init__(self, window: SortedWindow, thresholds: list[int]) -> None:
        self.window = window
        self.thresholds = thresholds
        self.room = [window.global_batch] * window.steps
        self.shares_left = [window.workers] * window.steps
        self.order: list[int] = []
        self.start = 0

    def size(self, step: int) -> int:
        """Samples that the next share takes if it belongs to `step`."""
        after = self.shares_left[step] - 1
        if not after:
            return self.room[step]
        count = min(self.thresholds[step] // self.window.work[self.start], self.room[step] - after)
        return max(count, 1)

    def fill(self, step: int) -> float:
        """How much of `step`'s threshold the next share would fill."""
        return self.size(step) * self.window.work[self.start] / self.thresholds[step]

    def take(self, step: int) -> None:
        """Give the next share to `step`."""
        count = self.size(step)
        self.room[step] -= count
        self.shares_left[step] -= 1
        self.start += count
        self.order.append(step)

    def finish(self) -> Deal:
        """One share a round for every step, those that lack the fewest samples first: shares grow towards the end."""
        while any(self.shares_left):
            for step in sorted(range(self.window.steps), key=self.room.__getitem__):
                self.take(step)
        return self.window.sweep(self.order, self.thresholds)


def _closing_shares(window: SortedWindow) -> int:
    """Shares per step that are not chosen by how well they fill."""
    return max(1, window.workers // 4)


def _by_rounds(window: SortedWindow, thresholds: list[int]) -> Deal:
    """Every step takes one share a round, the next samples going to the step whose threshold they fill best."""
    builder = _Builder(window, thresholds)
    for _ in range(window.workers - _closing_shares(window)):
        waiting = list(range(window.steps))
        while waiting:
            step = max(waiting, key=builder.fill)
            waiting.remove(step)
            builder.take(step)
    return builder.finish()


def _by_opening(window: SortedWindow, thresholds: list[int], slack_tokens: float) -> Deal:
    """Steps open one after another, so that the longest samples, however long, make few steps dear.

    A step that opens with a sample dearer than its threshold is raised to it. No step takes so many tokens that even
    its shortest samples would put it above the mean plus the slack.
    """
    builder = _Builder(window, list(thresholds))
    closing, shortest = _closing_shares(window), int(window.lengths[-1])
    allowed = window.tokens_before[-1] / window.steps + slack_tokens
    spare = [allowed - window.global_batch * shortest] * window.steps
    opened = 0
    for _ in range(window.steps * (window.workers - closing)):
        above = int(window.lengths[builder.start]) - shortest
        unfinished = [step for step in range(opened) if builder.shares_left[step] > closing]
        fitting = [step for step in unfinished if builder.size(step) * above <= spare[step]]
        step = max(fitting, key=builder.fill, default=-1)
        if opened < window.steps and (step < 0 or builder.fill(step) < GOOD_FILL):
            step, opened = opened, opened + 1
            builder.thresholds[step] = max(builder.thresholds[step], window.work[builder.start])
        elif step < 0:
            step = max(unfinished, key=spare.__getitem__)
        spare[step] -= builder.size(step) * above
        builder.take(step)
    return builder.finish()


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
        self._shares = stable_argsort(order)
        self._price = self._prices(counts[None], self._shares[None])[0][0]

    def change(self, is_spread: Callable[[IntArray], bool], rng: np.random.Generator) -> bool:
        """Make the change that lowers the price most and keeps to the spread; whether there was one."""
        counts, shares = self._changes(rng)
        prices, starts = self._prices(counts, shares)
        for index in stable_argsort(prices)[:CHECKED].tolist():
            if prices[index] >= self._price:
                break
            tokens = self._before[starts[index] + counts[index]] - self._before[starts[index]]
            if is_spread(tokens[shares[index]].reshape(self._window.steps, self._window.workers).sum(axis=1)):
                continue
            self.counts, self._shares, self._price = counts[index], shares[index], prices[index]
            self.order[self._shares] = np.repeat(np.arange(self._window.steps), self._window.workers)
            return True
        return False

    def _changes(self, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Counts and shares by step after each change, shape [K, W*G]."""
        steps, workers, size = self._window.steps, self._window.workers, len(self.order)
        own, other = np.nonzero(np.eye(workers) == 0)
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
        places = np.argsort(self._shares)
        shares[swapped, places[first]], shares[swapped, places[second]] = second, first
        return counts, shares

    def _prices(self, counts: IntArray, shares: IntArray) -> tuple[IntArray, IntArray]:
        """Price of each plan, shape [K], beyond all where a share is above its capacity, and where its shares begin."""
        starts = np.cumsum(counts, axis=1) - counts
        costs = (counts * self._work[starts])[np.arange(len(counts))[:, None], shares]
        dearest = costs.reshape(len(costs), self._window.steps, self._window.workers).max(axis=2)
        prices: IntArray = (dearest**self._window.power).sum(axis=1)
        if self._limits is not None:
            prices[np.any(counts > self._limits[starts], axis=1)] = np.iinfo(np.int64).max
        return prices, starts


def _some(chosen: IntArray, size: int, rng: np.random.Generator, *columns: IntArray) -> tuple[IntArray, ...]:
    """The chosen entries of each column; a random part of them where all are more than half a round prices."""
    most = max(PRICED // 2 // size, 1)
    if len(chosen) > most:
        chosen = rng.choice(chosen, most, replace=False)
    return tuple(column[chosen] for column in columns)

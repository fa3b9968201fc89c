"""First guesses of a window's plan.

In a good plan all shares of a step cost about the same. Long samples are the hard part: a share holds few of them, so
what it costs is a multiple of their length. The thresholds are therefore spread a little, and a share of long samples
goes to a step whose threshold it fills. Short samples fill anything: the shares that come last only have to bring
every step to B samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.schedule.window_sweep import Deal, SortedWindow

THRESHOLD_SPREAD = 0.03
"""Relative distance of the outermost thresholds from the middle."""
GOOD_FILL = 0.85
"""A share that fills less than this of every open step's threshold opens another step."""


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
    low = sum(window.work) / (window.steps * window.workers)
    high = 2 * low
    while not _reaches_end(window, int(high)):
        low, high = high, 2 * high
    while high - low > low / 256:
        middle = (low + high) / 2
        if _reaches_end(window, int(middle)):
            high = middle
        else:
            low = middle
    return high


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

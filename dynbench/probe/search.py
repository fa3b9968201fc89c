"""The search for the largest micro-batch that fits at one length: doubling to the first failure, then bisection.

Pure bookkeeping, no processes: whoever runs the trials asks `next_trial` and answers with `record`. A trial that ended
without an answer is simply not recorded, and is asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class CapacitySearch:
    """One rank's search at one length.

    Args:
        start: first micro-batch to try, samples; the answer at the next longer length is a good one.
        ceiling: largest micro-batch worth knowing, samples; what a global batch can ask of one rank.
        gap: the search ends when the failure is within this part of the success, or one more than it.
    """

    start: int = 1
    ceiling: int = 2**20
    gap: float = 0.05
    largest_ok: int = 0
    smallest_fail: int | None = None
    trials: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = min(max(self.start, 1), self.ceiling)

    @property
    def done(self) -> bool:
        """Whether the answer is known to within the gap."""
        if self.largest_ok >= self.ceiling or self.smallest_fail == 1:
            return True
        if self.smallest_fail is None or self.largest_ok == 0:
            return False
        distance = self.smallest_fail - self.largest_ok
        return distance <= max(1, math.floor(self.gap * self.largest_ok))

    def next_trial(self) -> int | None:
        """Samples to try next; None when done."""
        if self.done:
            return None
        if self.smallest_fail is None:
            return min(max(self.start, 2 * self.largest_ok), self.ceiling)
        if self.largest_ok == 0:
            return max(1, self.smallest_fail // 2)
        return (self.largest_ok + self.smallest_fail) // 2

    def record(self, n: int, fits: bool) -> None:
        """The answer of a trial of `n` samples.

        A failure below an earlier success (a fragmented allocator, say) takes that success back: what is reported as
        fitting must fit every time.
        """
        self.trials.append((n, fits))
        if fits:
            if self.smallest_fail is None or n < self.smallest_fail:
                self.largest_ok = max(self.largest_ok, n)
            return
        self.smallest_fail = n if self.smallest_fail is None else min(self.smallest_fail, n)
        if self.largest_ok >= n:
            passed = [count for count, ok in self.trials if ok and count < n]
            self.largest_ok = max(passed, default=0)


def with_margin(tested_ok: int, margin: float) -> int:
    """What is left of a tested micro-batch after the safety margin; never below 1 where one sample fits."""
    return max(1, math.floor(tested_ok * (1.0 - margin))) if tested_ok > 0 else 0


def monotone(capacity_by_length: Mapping[int, int]) -> dict[int, int]:
    """Capacities made non-increasing in length: a longer sequence never holds more samples than a shorter one.

    A violation is lowered, never raised, so the result holds only what was tested to fit.
    """
    repaired: dict[int, int] = {}
    lowest: int | None = None
    for length in sorted(capacity_by_length):
        lowest = capacity_by_length[length] if lowest is None else min(lowest, capacity_by_length[length])
        repaired[length] = lowest
    return repaired


def length_grid(max_length: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Lengths to probe, ascending: those given, else 32, 64, … doubled up to and with `max_length`."""
    if given is not None:
        return tuple(sorted(set(given)))
    grid = []
    length = 32
    while length < max_length:
        grid.append(length)
        length *= 2
    return (*grid, max_length)

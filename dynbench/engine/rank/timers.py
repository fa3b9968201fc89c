"""Where the time of a step goes, on the host's clock or on the device's.

Intervals are read after the one synchronisation that ends the step. Planning and data loading are host work and always
use the host's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from dynbench.clock import Clock, HostClock, clock_for

Phase = Literal["plan", "data", "forward", "backward", "sync", "optimizer"]
PHASES: tuple[Phase, ...] = ("plan", "data", "forward", "backward", "sync", "optimizer")


class StepTimer:
    """Collects the intervals of one step and sums them per phase.

    `step_ms` runs from the end of the previous step, so that the steps of a run add up to its wall time; what is in no
    phase (writing the row, resetting the memory peak, summing the global batch size) is the remainder.
    """

    def __init__(self, device: torch.device) -> None:
        self.clock = clock_for(device)
        self._host = HostClock()
        self._intervals: list[tuple[Phase, Clock, object, object]] = []
        self._ready: object | None = None
        self._open: tuple[Phase, object] | None = None
        self._boundary = self._host.mark()

    def restart(self) -> None:
        """Begin the next step now, leaving out what came since the last one ended."""
        self.clock.synchronise()
        self._boundary = self._host.mark()

    @contextmanager
    def host(self, phase: Phase) -> Iterator[None]:
        """Time a block of host work."""
        start = self._host.mark()
        yield
        self._intervals.append((phase, self._host, start, self._host.mark()))

    @contextmanager
    def device(self, phase: Phase) -> Iterator[None]:
        """Time a block that queues work on the device, but for what of it is `waiting`."""
        self._open = (phase, self.clock.mark())
        yield
        self.add(*self._open, self.clock.mark())
        self._open = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What other ranks are waited for, within a block of the same thread or outside of all, is no part of it."""
        if self._open is None:
            yield
            return
        (phase, start), begin = self._open, self.clock.mark()
        self.add(phase, start, begin)
        yield
        end = self.clock.mark()
        self.add("sync", begin, end)
        self._open = (phase, end)

    def add(self, phase: Phase, start: object, end: object) -> None:
        """Add an interval between two marks of `clock`."""
        self._intervals.append((phase, self.clock, start, end))

    def note_ready(self) -> None:
        """This rank's last gradient is ready; called by the communication hook, waits for nothing."""
        self._ready = self.clock.mark()

    def take_ready(self, default: object) -> object:
        """The moment noted since the last call, or `default` where none was."""
        ready, self._ready = self._ready, None
        return default if ready is None else ready

    def compute_ms(self, since: object) -> float:
        """Finished forward and backward passes of this step, and the time since `since`; waits for that work."""
        now = self.clock.mark()
        self.clock.wait(now)
        done = sum(
            clock.elapsed_ms(start, end)
            for phase, clock, start, end in self._intervals
            if phase in ("forward", "backward")
        )
        return done + self.clock.elapsed_ms(since, now)

    def end_step(self) -> tuple[dict[Phase, float], float]:
        """Milliseconds per phase, and of the whole step; the next step begins."""
        self.clock.synchronise()
        now = self._host.mark()
        step_ms = self._host.elapsed_ms(self._boundary, now)
        self._boundary = now
        return self.take_phases(), step_ms

    def take_phases(self) -> dict[Phase, float]:
        """Milliseconds per phase since the last call; the device must be synchronised."""
        totals: dict[Phase, float] = defaultdict(float)
        for phase, clock, start, end in self._intervals:
            totals[phase] += clock.elapsed_ms(start, end)
        self._intervals.clear()
        return {phase: totals[phase] for phase in PHASES}

"""Where the time of a step goes, on the host's clock or on the device's.

On a CPU a mark is a reading of the monotonic clock. On CUDA a mark is an event recorded on the current stream; nothing
waits for it, and intervals are read after the one synchronisation that ends the step. Planning and data loading are
host work and always use the host's clock.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import torch

Phase = Literal["plan", "data", "forward", "backward", "sync", "optimizer"]
PHASES: tuple[Phase, ...] = ("plan", "data", "forward", "backward", "sync", "optimizer")
NS_PER_MS = 1e6


class Clock(Protocol):
    """Marks of one kind and the time between them."""

    def mark(self) -> object:
        """This moment."""
        ...

    def synchronise(self) -> None:
        """Wait until everything queued on the device is done."""
        ...

    def wait(self, mark: object) -> None:
        """Wait until the work queued before a mark is done; work on other streams may go on."""
        ...

    def elapsed_ms(self, start: object, end: object) -> float:
        """Milliseconds between two marks that have been waited for."""
        ...


class HostClock:
    """The monotonic clock; nothing is queued, so there is nothing to wait for."""

    def mark(self) -> int:
        """Nanoseconds."""
        return time.perf_counter_ns()

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def wait(self, mark: object) -> None:
        """Nothing to wait for."""

    def elapsed_ms(self, start: object, end: object) -> float:
        """Milliseconds between two marks."""
        assert isinstance(start, int) and isinstance(end, int)
        return (end - start) / NS_PER_MS


class CudaClock:
    """Events on the current stream of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event recorded now; never waits."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's is untyped
        event.record(torch.cuda.current_stream(self._device))
        return event

    def synchronise(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)

    def wait(self, mark: object) -> None:
        """Wait for an event, not for collectives on other streams."""
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()

    def elapsed_ms(self, start: object, end: object) -> float:
        """Milliseconds between two events that have both happened."""
        assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end))


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


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
        """Time a block that queues work on the device."""
        start = self.clock.mark()
        yield
        self.add(phase, start, self.clock.mark())

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

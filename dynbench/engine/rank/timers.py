"""Where the time of a step goes, on the host's clock or on the device's.

Intervals are read once the work is done that was queued for the step; what strategies let run on beside it, on streams
of its own, ends in a later step. Planning and data loading are host work and always use the host's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from dynbench.clock import Clock, clock_for
from dynbench.wire.segment import named_range

Phase = Literal["plan", "data", "forward", "backward", "sync", "optimizer"]
PHASES: tuple[Phase, ...] = ("plan", "data", "forward", "backward", "sync", "optimizer")
WITHIN: tuple[Phase, ...] = ("forward", "backward", "optimizer")
"""Phases that may wait for other ranks, which is sync then."""
Span = tuple[object, object]


@dataclass(frozen=True, slots=True)
class Synchronised:
    """When a step synchronised."""

    spans_ns: Sequence[tuple[int, int]] = ()
    """Begin and end, on the host's clock."""
    within_ms: Mapping[Phase, float] = field(default_factory=dict)
    """How much of it lay within another phase, which does not have it."""


class StepTimer:
    """Collects the intervals of one step and sums them per phase.

    `step_ms` runs from the end of the previous step, so that the steps of a run add up to its wall time; what is in no
    phase (writing the row, resetting the memory peak, summing the global batch size) is the remainder.

    Args:
        device: whose clock times what is queued on it.
        at: called with every phase that begins.
        patience_s: longest wait for what is queued, s; None for ever.
    """

    def __init__(
        self,
        device: torch.device,
        at: Callable[[Phase], None] = lambda phase: None,
        patience_s: float | None = None,
    ) -> None:
        self._device = device
        self._at = at
        self._phase: Phase = "plan"
        self.clock = clock_for(device, patience_s)
        self._host = Clock()
        self._intervals: list[tuple[Phase, Clock, object, object]] = []
        self._within: list[tuple[Phase, object, object]] = []
        self._ready: tuple[object, int] | None = None
        self._open: tuple[Phase, object] | None = None
        self._backward_start: object = None
        self._waits: list[Span] | None = None
        self.synchronised = Synchronised()
        """Of the step that ended."""
        self._boundary = self._host.mark()

    def restart(self) -> None:
        """Begin the next step now, leaving out what came since the last one ended."""
        self.clock.synchronise()
        self._boundary = self._host.mark()

    @contextmanager
    def host(self, phase: Phase) -> Iterator[None]:
        """Time a block of host work."""
        self._begin(phase)
        start = self._host.mark()
        yield
        self._intervals.append((phase, self._host, start, self._host.mark()))

    @contextmanager
    def device(self, phase: Phase) -> Iterator[None]:
        """Time a block that queues work on the device, but for what of it is `waiting`."""
        self._begin(phase)
        self._open = (phase, self.clock.mark())
        with named_range(phase, self._device):
            yield
        self.add(*self._open, self.clock.mark())
        self._open = None

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Time a backward pass up to `note_ready`, but for what of it is `waiting`; what follows is sync."""
        self._begin("backward")
        start = self._backward_start = self.clock.mark()
        self._ready, self._waits = None, []
        with named_range("backward", self._device):
            yield
        end = self.clock.mark()
        ready, before = self._ready or (end, len(self._waits))
        for begin, stop in self._waits[:before]:
            self.add("backward", start, begin)
            self._add_within("backward", begin, stop)
            start = stop
        self.add("backward", start, ready)
        self.add("sync", ready, end)
        self._waits = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What other ranks are waited for, within a block or pass of the same thread or outside of all, is sync."""
        begin, before = self.clock.mark(), self._phase
        self._begin("sync")
        if self._open is None:
            yield
            self._begin(before)
            if self._waits is not None:
                self._waits.append((begin, self.clock.mark()))
            return
        phase, start = self._open
        self.add(phase, start, begin)
        yield
        end = self.clock.mark()
        self._begin(before)
        self._add_within(phase, begin, end)
        self._open = (phase, end)

    def _begin(self, phase: Phase) -> None:
        self._phase = phase
        self._at(phase)

    def add(self, phase: Phase, start: object, end: object) -> None:
        """Add an interval between two marks of `clock`."""
        self._intervals.append((phase, self.clock, start, end))

    def _add_within(self, phase: Phase, start: object, end: object) -> None:
        self.add("sync", start, end)
        if phase != "sync":
            self._within.append((phase, start, end))

    def note_ready(self) -> None:
        """This rank's last gradient is ready; called by the communication hook, waits for nothing."""
        self._ready = self.clock.mark(), len(self._waits or ())
        self._begin("sync")

    def compute_ms(self) -> float:
        """Forward and backward passes of this step so far, the running one's; waits for that work."""
        now = self.clock.mark()
        self.clock.wait(now)
        done = sum(
            clock.elapsed_ms(start, end)
            for phase, clock, start, end in self._intervals
            if phase in ("forward", "backward")
        )
        if self._waits is None:
            return done
        waited = sum(self.clock.elapsed_ms(start, end) for start, end in self._waits)
        return done + self.clock.elapsed_ms(self._backward_start, now) - waited

    def end_step(self) -> tuple[dict[Phase, float], float]:
        """Milliseconds per phase, and of the whole step; the next step begins.

        Raises:
            RuntimeError: what was queued does not end.
        """
        self.clock.wait(self.clock.mark())
        now = self._host.mark()
        step_ms = self._host.elapsed_ms(self._boundary, now)
        self._boundary = now
        return self.take_phases(), step_ms

    def take_phases(self) -> dict[Phase, float]:
        """Milliseconds per phase since the last call; what was queued for them must be done."""
        totals: dict[Phase, float] = defaultdict(float)
        for phase, clock, start, end in self._intervals:
            totals[phase] += clock.elapsed_ms(start, end)
        within: dict[Phase, float] = defaultdict(float)
        for phase, start, end in self._within:
            within[phase] += self.clock.elapsed_ms(start, end)
        to_ns = self.clock.to_host_ns()
        spans = [(to_ns(start), to_ns(end)) for phase, _, start, end in self._intervals if phase == "sync"]
        self.synchronised = Synchronised(spans, within)
        self._intervals.clear()
        self._within.clear()
        return {phase: totals[phase] for phase in PHASES}

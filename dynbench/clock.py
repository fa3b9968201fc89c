"""Moments on the host's clock or on the device's, and the time between them.

On a CPU a mark is a reading of the monotonic clock. On CUDA a mark is an event recorded on the current stream; nothing
waits for it, and intervals are read when that work is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

NS_PER_MS = 1e6


class Clock:
    """The host's monotonic clock: nothing is queued, so that there is nothing to wait for."""

    def mark(self) -> Any:
        """This moment, in nanoseconds; of a device, an event."""
        return time.perf_counter_ns()

    def synchronise(self) -> None:
        """Wait until everything queued on the device is done."""

    def wait(self, mark: Any) -> None:
        """Wait until the work queued before a mark is done; work on other streams may go on."""

    def happened(self, mark: Any) -> bool:
        """Whether the work queued before a mark is done."""
        return True

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks that have happened."""
        return float(end - start) / NS_PER_MS

    def to_host_ns(self) -> Callable[[Any], int]:
        """What converts marks that have happened to nanoseconds of the host's clock."""
        return int


class CudaClock(Clock):
    """Events on the current stream of one device.

    Args:
        device: the device.
        patience_s: longest wait for a mark, s; None for ever.
    """

    def __init__(self, device: torch.device, patience_s: float | None = None) -> None:
        self._device = device
        self._patience_s = patience_s

    def mark(self) -> torch.cuda.Event:
        """An event recorded now; never waits."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's is untyped
        event.record(torch.cuda.current_stream(self._device))
        return event

    def synchronise(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)

    def wait(self, mark: Any) -> None:
        """Wait for an event, not for collectives on other streams.

        The event is polled: CUDA's own wait knows no time-out where another rank never comes.

        Raises:
            RuntimeError: it has not happened within `patience_s`.
        """
        begun = time.monotonic()
        while not self.happened(mark):
            if self._patience_s is not None and time.monotonic() - begun > self._patience_s:
                raise RuntimeError(
                    f"timed out waiting {self._patience_s:g} s for {self._device}: what is queued on it does not end"
                )
            time.sleep(0)  # other threads of this process send meanwhile

    def happened(self, mark: Any) -> bool:
        """Whether the work queued before an event is done."""
        return bool(mark.query())

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two events that have both happened."""
        return float(start.elapsed_time(end))

    def to_host_ns(self) -> Callable[[Any], int]:
        """By the time between them and now; waits for the current stream."""
        now = self.mark()
        now.synchronize()
        host = time.perf_counter_ns()
        return lambda mark: host - round(self.elapsed_ms(mark, now) * NS_PER_MS)


def clock_for(device: torch.device, patience_s: float | None = None) -> Clock:
    """The clock of a device, which waits at most `patience_s` for one of its marks; None for ever."""
    return CudaClock(device, patience_s) if device.type == "cuda" else Clock()

"""A slower link than the real one: what is sent arrives no sooner than over a link of so many bits a second."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.futures import Future

BITS_PER_GBIT = 1e9
"""As speeds of links are given."""


@dataclass
class Arrivals:
    """When what a rank sends has arrived, over a link of its own that carries one call after the other; seconds.

    What the machine itself takes to move the bytes goes on beside the link: a call takes the longer of the two, from
    when the last rank has called. When that was, nobody says; it is taken to be what the machine has moved the bytes
    of such a call in at best before they were moved.

    Args:
        bytes_per_s: of the link.
    """

    bytes_per_s: float
    _free: float = float("-inf")
    _best: dict[str, float] = field(default_factory=dict)

    def arrives(self, operation: str, nbytes: int, called: float, moved: float) -> float:
        """When a call is complete that this rank made at one time, and that was moved within the machine at another."""
        took = (moved - called) / nbytes if nbytes else 0.0
        best = self._best[operation] = min(took, self._best.get(operation, took))
        begun = max(self._free, moved - best * nbytes)
        self._free = max(moved, begun + nbytes / self.bytes_per_s)
        return self._free


@dataclass(frozen=True, slots=True)
class _Delivery:
    due: float
    future: Future[object]


class Link:
    """Holds back what was moved until it would have arrived.

    Args:
        gbps: speed, Gb/s.
    """

    def __init__(self, gbps: float) -> None:
        self._arrivals = Arrivals(gbps * BITS_PER_GBIT / 8)
        self._lock = threading.Lock()
        self._deliveries: queue.SimpleQueue[_Delivery | None] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, daemon=True, name="dynbench-link").start()

    def carry(self, operation: str, nbytes: int, begin: Callable[[], Future[Any]]) -> Future[object]:
        """Begin a call, which moves so many bytes over this rank's link; the future is that of their arrival."""
        called = time.monotonic()
        arrived: Future[object] = Future()

        def moved(done: Future[Any]) -> None:
            try:
                done.value()
            except Exception as error:  # torch's, of whatever went wrong in the group: the waiting rank is told
                arrived.set_exception(error)
                return
            with self._lock:
                due = self._arrivals.arrives(operation, nbytes, called, time.monotonic())
                self._deliveries.put(_Delivery(due, arrived))

        begin().add_done_callback(moved)
        return arrived

    def close(self) -> None:
        """Nothing is sent any more."""
        self._deliveries.put(None)

    def _deliver(self) -> None:
        while (delivery := self._deliveries.get()) is not None:
            time.sleep(max(0.0, delivery.due - time.monotonic()))
            delivery.future.set_result(None)

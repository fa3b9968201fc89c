"""A clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable

from dynbench.clock import NS_PER_MS


class SetClock:
    """As `dynbench.clock.Clock`; a mark has happened once `now`, ms, has come so far."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def synchronise(self) -> None: ...

    def wait(self, mark: object) -> None: ...

    def happened(self, mark: float) -> bool:
        return mark <= self.now

    def elapsed_ms(self, start: float, end: float) -> float:
        return end - start

    def to_host_ns(self) -> Callable[[float], int]:
        return lambda mark: round(mark * NS_PER_MS)

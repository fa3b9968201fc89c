"""How far something long has got, told while it runs."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

FIRST_S = 2.0
"""What takes no longer is not told."""
EVERY_S = 5.0


class Pace:
    """Says now and then how much is done, how fast it goes and how long the rest will take.

    Args:
        what: is being done.
        total: of it, in `unit`; None where nobody knows.
        unit: what is counted, in the plural.
    """

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = self._skipped = 0
        self._begin = time.monotonic()
        self._next = self._begin + FIRST_S
        self._told = False

    def add(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        now = time.monotonic()
        if now >= self._next:
            self._next, self._told = now + EVERY_S, True
            logger.info("%s", self._said(now))

    def skip(self, amount: int) -> None:
        """So much more was done before, and says nothing about the rate."""
        self._skipped += amount

    def end(self) -> None:
        """All is done; told where anything was."""
        if self._told:
            taken = time.monotonic() - self._begin
            logger.info("%s: %s %s in %.1f s", self._what, f"{self._done:,}", self._unit, taken)

    def _said(self, now: float) -> str:
        rate = self._done / (now - self._begin)
        said = f"{self._what}: {rate / 1e6:.2f} M {self._unit}/s"
        if self._total is None:
            return f"{said}, {(self._done + self._skipped) / 1e6:.0f} M so far"
        share = (self._done + self._skipped) / max(1, self._total)
        left = (self._total - self._done - self._skipped) / rate
        return f"{said}, {share:.0%}, {max(0.0, left):.0f} s left"

"""A clock that moves when it is moved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynbench import clock


class Hands:
    """What the host's clock shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        shown = SimpleNamespace(perf_counter_ns=lambda: round(self.now_ms * clock.NS_PER_MS))
        monkeypatch.setattr(clock, "time", shown)

    def pass_ms(self, ms: float) -> None:
        """Time goes on."""
        self.now_ms += ms

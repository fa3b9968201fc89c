"""What parts of a step take on a strategy's device, for columns of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dynbench.clock import clock_for


class StepTimes:
    """Intervals of a step by name; nothing waits for the device until they are taken.

    Args:
        device: whose clock they are on.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = clock_for(device)
        self._spans: list[tuple[str, object, object]] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time a block; those of one name add up."""
        start = self._clock.mark()
        yield
        self._spans.append((name, start, self._clock.mark()))

    def take_ms(self) -> defaultdict[str, float]:
        """Milliseconds by name since the last call, 0 for any other; the device must be synchronised."""
        spans, self._spans = self._spans, []
        total: defaultdict[str, float] = defaultdict(float)
        for name, start, end in spans:
            total[name] += self._clock.elapsed_ms(start, end)
        return total

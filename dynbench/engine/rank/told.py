"""How far training is, said in the log of the first rank that trains."""

from __future__ import annotations

import logging

from dynbench.runs.records import StepRow

_log = logging.getLogger(__name__)
LINES = 10
"""In a run, about."""


class Told:
    """Says the loss of some steps, evenly over a run.

    Args:
        steps: of the run, warm-up included.
        says: whether this rank does.
    """

    def __init__(self, steps: int, *, says: bool) -> None:
        self._steps = steps
        self._every = max(1, steps // LINES)
        self._says = says

    def step(self, row: StepRow) -> None:
        """A step of this rank that is written."""
        done = row.step + 1
        if self._says and (done % self._every == 0 or done == self._steps):
            own = f"loss {row.loss:.4f} over the {row.local_batch} samples of this rank"
            _log.info("step %d of %d: %s, %.1f ms", done, self._steps, own, row.step_time_ms)

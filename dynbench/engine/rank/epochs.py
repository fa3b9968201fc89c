"""What came of an epoch, in a line, as soon as it has ended and was evaluated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dynbench.config.schema import Train
from dynbench.runs.columns import CORRECT
from dynbench.runs.records import StepRow

_log = logging.getLogger(__name__)


class Epochs:
    """Adds up what the ranks of this process trained since the last epoch ended.

    Args:
        train: how long an epoch is, where epochs are asked for.
        sum_over_ranks: adds up vectors over all ranks.
        timed: the rank whose steps' times stand for all, which end their steps together.
        says: whether the line goes into the log of this process.
        file: where the lines are appended; None on ranks that do not write.
    """

    def __init__(
        self,
        train: Train,
        sum_over_ranks: Callable[[Sequence[float]], list[float]],
        timed: int = 0,
        says: bool = True,
        file: Path | None = None,
    ) -> None:
        self._file, self._says = file, says
        self._train = train
        self._each = train.epoch_steps
        self._sum_over_ranks = sum_over_ranks
        self._timed = timed
        self._begin()

    def _begin(self) -> None:
        self._sums = [0.0] * 5

    def ends(self, step: int) -> bool:
        """Whether an epoch ends with `step`."""
        return self._each is not None and (step + 1) % self._each == 0

    def add(self, row: StepRow, extra: Mapping[str, object]) -> None:
        """One rank's step."""
        correct = extra.get(CORRECT.name)
        counted = float(correct) if isinstance(correct, int) else float("nan")
        timed_ms = row.step_time_ms if row.rank == self._timed else 0.0
        new = (row.loss * row.weight, row.weight, counted, row.local_batch, timed_ms)
        self._sums = [before + more for before, more in zip(self._sums, new, strict=True)]

    def end(self, step: int, found: Mapping[str, float | None] | None) -> None:
        """Say what came of the epoch that `step` ended; a collective, called after every evaluation alike.

        Args:
            step: the step after which it was evaluated.
            found: of the evaluation, where there was one.
        """
        if self._each is None or not self.ends(step):
            return
        loss, weight, correct, samples, ms = self._sum_over_ranks(self._sums)
        self._begin()
        trained = _said("training", loss / weight if weight else None, correct / samples if samples else None)
        held = "" if found is None else "; " + _said("evaluation", found.get("loss"), found.get("accuracy"))
        seconds = ms / 1e3
        rate = f"{samples / seconds:,.0f} samples/s" if seconds else ""
        number = (step + 1) // self._each
        line = f"epoch {number} of {self._train.epochs}: {trained}{held}; {seconds:.1f} s, {rate}"
        if self._says:
            _log.info("%s", line)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _said(what: str, loss: float | None, accuracy: float | None) -> str:
    known = f", accuracy {accuracy:.1%}" if accuracy is not None and accuracy == accuracy else ""
    return f"{what} loss {'-' if loss is None else f'{loss:.4f}'}{known}"

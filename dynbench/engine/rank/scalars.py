"""Scalars of a run for TensorBoard: the steps of one rank as its rows have them, and the evaluations of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from dynbench.config.schema import Config
from dynbench.errors import UsageError
from dynbench.runs.columns import TURN
from dynbench.runs.records import StepRow
from dynbench.runs.run import Run

FOLDER = "tensorboard"
"""Within a run's folder."""
INSTALL = "pip install tensorboard"
FLUSH_S = 5
"""Longest time until TensorBoard sees a step, seconds; it is written in the background."""
_NOT_DRAWN = ("step", "rank", "warmup", "work_hash", TURN.name)


def check_scalars(config: Config) -> None:
    """Refuse `train.tensorboard` where the package is missing, before anything is launched.

    Raises:
        UsageError: it is missing.
    """
    if config.train.tensorboard and find_spec("tensorboard") is None:
        raise UsageError("train.tensorboard: true, but the package tensorboard is not installed", f"{INSTALL}.")


class Scalars:
    """Writes scalars, or nothing.

    Args:
        writer: torch's `SummaryWriter`; None writes nothing.
    """

    def __init__(self, writer: Any | None = None) -> None:
        self._writer = writer

    def row(self, row: StepRow, extra: Mapping[str, object]) -> None:
        """A step of this rank: what its row and the further columns hold of numbers, as `rank_N/column`."""
        if self._writer is None:
            return
        for name, value in {**asdict(row), **extra}.items():
            if isinstance(value, int | float) and name not in _NOT_DRAWN:
                self._writer.add_scalar(f"rank_{row.rank}/{name}", value, row.step)

    def evaluation(self, step: int, found: Mapping[str, float | None]) -> None:
        """What an evaluation after `step` gave over all ranks, as `evaluation/name`."""
        if self._writer is None:
            return
        for name, value in found.items():
            if value is not None:
                self._writer.add_scalar(f"evaluation/{name}", value, step)


@contextmanager
def scalars_of(config: Config, run: Run, *, writes: bool) -> Iterator[Scalars]:
    """Scalars in the run's folder where `train.tensorboard` asks for them and this process `writes` them."""
    if not (config.train.tensorboard and writes):
        yield Scalars()
        return
    from torch.utils.tensorboard import SummaryWriter

    with closing(SummaryWriter(str(run.path / FOLDER), flush_secs=FLUSH_S)) as writer:
        yield Scalars(writer)

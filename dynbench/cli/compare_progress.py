"""The progress of a comparison on stderr: a bar on a terminal, a line per launch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, TimeElapsedColumn

from dynbench.cli.console import progress_bar, stderr
from dynbench.cli.progress import EpochTeller
from dynbench.units import format_ms

if TYPE_CHECKING:
    from dynbench.experiment.launches import CompareProgress


class Display:
    """Shows launches and what follows them; see `compare_display`."""

    def on_progress(self, progress: CompareProgress) -> None:
        """A launch began or went on."""

    def on_stage(self, text: str) -> None:
        """Something after the launches began."""


class _Lines(Display):
    def __init__(self) -> None:
        self._shown = -1
        self._stage = ""
        self._epochs = EpochTeller()

    def on_progress(self, progress: CompareProgress) -> None:
        _tell(self._epochs, progress)
        if progress.done > self._shown:
            self._shown = progress.done
            stderr.print(f"{_title(progress)}  {_left(progress)}".rstrip(), soft_wrap=True)

    def on_stage(self, text: str) -> None:
        stage = text.partition(" ")[0]
        if stage != self._stage:
            self._stage = stage
            stderr.print(text, soft_wrap=True)


class _Bar(Display):
    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update
        self._epochs = EpochTeller()

    def on_progress(self, progress: CompareProgress) -> None:
        _tell(self._epochs, progress)
        fraction = progress.steps_done / progress.total_steps
        facts = f"{fraction:.0%} of its steps" if progress.steps_done else "starting ranks"
        self._update(
            description=_title(progress),
            completed=progress.done + fraction,
            total=progress.total,
            facts=f"{facts}  {_left(progress)}".rstrip(),
        )

    def on_stage(self, text: str) -> None:
        self._update(description=text, completed=1, total=1, facts="")


@contextmanager
def compare_display(wanted: bool) -> Iterator[Display]:
    """A display for stderr as it is; one that shows nothing when none is wanted."""
    if not wanted:
        yield Display()
    elif not stderr.is_terminal:
        yield _Lines()
    else:
        with progress_bar("starting", BarColumn(), TimeElapsedColumn()) as update:
            yield _Bar(update)


def _tell(epochs: EpochTeller, progress: CompareProgress) -> None:
    epochs.tell(progress.epochs, [f"{one.arm} #{one.block + 1}" for one in progress.arms], progress.done)


def _title(progress: CompareProgress) -> str:
    arms = progress.arms
    who = arms[0].arm if len(arms) == 1 else f"{len(arms)} arms in turns"
    return f"launch {progress.done + 1}/{progress.total}  {who} #{arms[0].block + 1}"


def _left(progress: CompareProgress) -> str:
    return "" if progress.eta_s is None else f"about {format_ms(1000 * round(progress.eta_s))} left"

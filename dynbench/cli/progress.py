"""How far a command is, on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

from dynbench.cli.console import progress_bar, stderr
from dynbench.units import format_ms

if TYPE_CHECKING:
    from dynbench.engine.launching.progress import OnProgress, Progress
    from dynbench.experiment.launches import CompareProgress


LINES = 10
"""Lines printed in all where there is no terminal."""

BAR_WIDTH = 12
"""Leaves room for the facts on 80 columns."""


@contextmanager
def progress_display(wanted: bool) -> Iterator[OnProgress | None]:
    """What to call with progress; None when none is wanted."""
    if not wanted:
        yield None
    elif stderr.is_terminal:
        with _bar() as on_progress:
            yield on_progress
    else:
        yield _line_printer()


@contextmanager
def _bar() -> Iterator[OnProgress]:
    columns = BarColumn(bar_width=BAR_WIDTH), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    epochs = EpochTeller()
    with progress_bar("starting ranks", *columns) as update:

        def show(progress: Progress) -> None:
            epochs.tell(progress.epochs)
            update(
                description=_doing(progress),
                completed=max(0, progress.steps_done - progress.warmup_steps),
                total=progress.total_steps - progress.warmup_steps,
                facts=describe(progress),
            )

        yield show


def _doing(progress: Progress) -> str:
    if not progress.steps_done:
        return progress.preparing or "starting ranks"
    return progress.place if progress.steps_done < progress.warmup_steps else "training"


def _line_printer() -> Callable[[Progress], None]:
    epochs, shown, prepared = EpochTeller(), -1, ""

    def show(progress: Progress) -> None:
        nonlocal shown, prepared
        epochs.tell(progress.epochs)
        if progress.preparing != prepared and progress.preparing:
            prepared = progress.preparing
            stderr.print(prepared, soft_wrap=True)
        tenth = progress.steps_done * LINES // progress.total_steps
        if tenth > shown:
            shown = tenth
            text = f"{progress.place}  {progress.elapsed_s:.0f} s  {describe(progress)}"
            stderr.print(text.rstrip(), soft_wrap=True)

    return show


class EpochTeller:
    """Prints the line of every epoch once, as it ends."""

    def __init__(self) -> None:
        self._told: Counter[tuple[int, int]] = Counter()

    def tell(self, epochs: Sequence[Sequence[str]], names: Sequence[str] = (), launch: int = 0) -> None:
        """Print what is new.

        Args:
            epochs: of each run of a launch, its lines so far.
            names: of the runs, to tell them apart; none for a run alone.
            launch: number of the launch.
        """
        for place, lines in enumerate(epochs):
            opening = f"{names[place]}  " if names else ""
            for line in lines[self._told[launch, place] :]:
                stderr.print(f"{opening}{line}", soft_wrap=True)
            self._told[launch, place] = len(lines)


def describe(progress: Progress) -> str:
    """Loss, throughput and imbalance (longest over mean compute of the ranks), as far as they are known."""
    parts = []
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.tokens_per_s is not None:
        parts.append(f"{progress.tokens_per_s:,.0f} {progress.unit}/s")
    if progress.imbalance is not None:
        parts.append(f"imbalance {progress.imbalance:.2f}")
    return "  ".join(parts)


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

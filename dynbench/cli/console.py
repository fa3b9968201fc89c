"""The terminal: its width and its tables, and what is said on the way while something takes long."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from dynbench.table_text import Table, numeric_columns, printable, split_columns
from dynbench.units import format_ms

if TYPE_CHECKING:
    from dynbench.engine.launching.progress import Progress as TrainingProgress
    from dynbench.experiment.launches import CompareProgress

PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe."""
MOST_WIDTH = 10_000
LONG_CELL = 30
"""Characters from which a cell of several words is a sentence, which may be wrapped."""
LINES = 10
"""Lines of a training's progress in all where there is no terminal."""
BAR_WIDTH = 12
"""Leaves room for the facts on 80 columns."""


class _Console(Console):
    """A console that leaves a closed pipe on stdout to the command line's own handling.

    Progress must not end a run: when nobody reads stderr any more, it leads nowhere.
    """

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def render_str(self, text: str, **how: Any) -> Text:
        """What is printed as it stands, see `printable`."""
        return super().render_str(printable(text), **how)


def _console(to_stderr: bool, width: int | None = None) -> Console:
    stream = sys.stderr if to_stderr else sys.stdout
    if width is None and not stream.isatty():
        width = PIPE_WIDTH
    return _Console(stderr=to_stderr, width=width, markup=False, highlight=False, emoji=False)


stdout = _console(to_stderr=False)
stderr = _console(to_stderr=True)

# Tables ---------------------------------------------------------------------------------------------------------------


def drawn(target: Console, table: Table, bold: Collection[int] = ()) -> Iterator[str]:
    """A table as text for a console, see `output.show_table`; several below each other where it is too wide.

    Args:
        target: the console.
        table: what is drawn; its title is not.
        bold: positions of rows that stand out.
    """
    header, *cells = ([printable(cell) for cell in line] for line in (table.columns, *table.rows))
    numeric = numeric_columns(len(header), cells)

    def draw(chosen: Sequence[int]) -> RichTable:
        made = RichTable(box=None, pad_edge=False)
        for index in chosen:
            column = [row[index] for row in cells]
            wrapped = any(len(cell) > LONG_CELL and " " in cell for cell in column)
            whole = max(Text(line).cell_len for text in (header[index], *column) for line in text.split("\n"))
            made.add_column(
                Text(header[index]),
                justify="right" if numeric[index] else "left",
                no_wrap=not wrapped,
                min_width=None if wrapped else whole,
            )
        for position, row in enumerate(cells):
            made.add_row(*(Text(row[index]) for index in chosen), style="bold" if position in bold else "")
        return made

    def least(chosen: Sequence[int]) -> int:
        return target.measure(draw(chosen), options=target.options.update(width=MOST_WIDTH)).minimum

    def fits(chosen: Sequence[int]) -> bool:
        return not target.is_terminal or least(chosen) <= target.width

    for number, chosen in enumerate(split_columns(len(header), table.keys, fits, table.beside)):
        wide = least(chosen) > target.width
        console = _console(to_stderr=target.stderr, width=least(chosen)) if wide else target
        with console.capture() as captured:
            console.print(draw(chosen))
        yield ("\n" if number else "") + "\n".join(line.rstrip() for line in captured.get().splitlines())


def print_markdown(text: str) -> None:
    """Print Markdown laid out, at most 100 columns wide; blocks of code stand as they are."""
    from rich.markdown import CodeBlock, Markdown  # a tenth of a second

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(indent(f"{self.text}".rstrip(), "    "), "cyan", no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": Code, "code_block": Code}

    Console(width=min(100, Console().width), soft_wrap=False).print(Page(text), crop=False)


# Progress -------------------------------------------------------------------------------------------------------------


@contextmanager
def working(
    wanted: bool, what: str = "", *, after_s: float = 0.0, line_every_s: float = 0.0
) -> Iterator[Callable[[str], None]]:
    """What to call with what is being done: a spinner with the text on a terminal, lines elsewhere.

    Args:
        wanted: False shows nothing.
        what: shown first, on a terminal.
        after_s: the spinner appears no sooner.
        line_every_s: a line is left out that comes sooner after the one before it, or after the beginning.
    """
    status = stderr.status(Text(what))
    begin = printed = time.monotonic()

    def show(text: str) -> None:
        nonlocal printed
        now = time.monotonic()
        if stderr.is_terminal:
            if now - begin >= after_s:
                status.update(Text(printable(text)))
                status.start()
        elif now - printed >= line_every_s:
            printed = now
            stderr.print(text, soft_wrap=True)

    if wanted and what and stderr.is_terminal:
        show(what)
    try:
        yield show if wanted else lambda text: None
    finally:
        status.stop()


class Display:
    """Shows on stderr how far a training or a comparison is; see `display`.

    Args:
        wanted: False prints no lines.
        update: of a bar, takes `description`, `completed`, `total` and `facts` by name; None prints lines, each once.
    """

    def __init__(self, wanted: bool, update: Callable[..., None] | None = None) -> None:
        self._wanted, self._update = wanted, update
        self._marks: dict[str, object] = {}
        self._epochs: Counter[tuple[int, int]] = Counter()

    def on_training(self, progress: TrainingProgress) -> None:
        """A run began or went on."""
        self._print_epochs(progress.epochs)
        if self._update is None:
            self._print_changed("preparing", progress.preparing, progress.preparing)
            text = f"{progress.place}  {progress.elapsed_s:.0f} s  {describe(progress)}"
            self._print_changed("steps", progress.steps_done * LINES // progress.total_steps, text.rstrip())
            return
        doing = progress.place if progress.steps_done < progress.warmup_steps else "training"
        self._update(
            description=doing if progress.steps_done else progress.preparing or "starting ranks",
            completed=max(0, progress.steps_done - progress.warmup_steps),
            total=progress.total_steps - progress.warmup_steps,
            facts=describe(progress),
        )

    def on_launches(self, progress: CompareProgress) -> None:
        """A launch of a comparison began or went on."""
        arms, done = progress.arms, progress.done
        self._print_epochs(progress.epochs, [f"{one.arm} #{one.block + 1}" for one in arms], done)
        who = arms[0].arm if len(arms) == 1 else f"{len(arms)} arms in turns"
        title = f"launch {done + 1}/{progress.total}  {who} #{arms[0].block + 1}"
        left = "" if progress.eta_s is None else f"about {format_ms(1000 * round(progress.eta_s))} left"
        if self._update is None:
            self._print_changed("launch", done, f"{title}  {left}".rstrip())
            return
        fraction = progress.steps_done / progress.total_steps
        doing = f"{fraction:.0%} of its steps" if progress.steps_done else "starting ranks"
        facts = f"{doing}  {left}".rstrip()
        self._update(description=title, completed=done + fraction, total=progress.total, facts=facts)

    def on_stage(self, text: str) -> None:
        """Something after the launches began."""
        if self._update is None:
            self._print_changed("stage", text.partition(" ")[0], text)
        else:
            self._update(description=text, completed=1, total=1, facts="")

    def _print_changed(self, kind: str, mark: object, text: str) -> None:
        """Print a text whose mark is another than the last of its kind; an empty one never."""
        if text and self._marks.get(kind) != mark:
            self._marks[kind] = mark
            self._print(text)

    def _print_epochs(self, epochs: Sequence[Sequence[str]], names: Sequence[str] = (), launch: int = 0) -> None:
        """Print the line of every epoch that ended since the last call.

        Args:
            epochs: of each run of a launch, its lines so far.
            names: of the runs, to tell them apart; none for a run alone.
            launch: number of the launch.
        """
        for place, lines in enumerate(epochs):
            opening = f"{names[place]}  " if names else ""
            for line in lines[self._epochs[launch, place] :]:
                self._print(f"{opening}{line}")
            self._epochs[launch, place] = len(lines)

    def _print(self, text: str) -> None:
        if self._wanted:
            stderr.print(text, soft_wrap=True)


def describe(progress: TrainingProgress) -> str:
    """Loss, throughput and imbalance (longest over mean compute of the ranks), as far as they are known."""
    parts = []
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.tokens_per_s is not None:
        parts.append(f"{progress.tokens_per_s:,.0f} {progress.unit}/s")
    if progress.imbalance is not None:
        parts.append(f"imbalance {progress.imbalance:.2f}")
    return "  ".join(parts)


TRAINING = (lambda: BarColumn(bar_width=BAR_WIDTH), MofNCompleteColumn, partial(TimeRemainingColumn, compact=True))
LAUNCHES = (BarColumn, TimeElapsedColumn)
"""Columns of the bar of a training, and of a comparison."""


@contextmanager
def display(wanted: bool, what: str, columns: Sequence[Callable[[], ProgressColumn]]) -> Iterator[Display]:
    """Shows progress on stderr: a bar on a terminal, else lines; nothing when none is wanted.

    Args:
        wanted: False shows nothing.
        what: is being done at first.
        columns: what makes the bar and what counts beside it.
    """
    if not (wanted and stderr.is_terminal):
        yield Display(wanted)
        return
    doing, facts = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[facts]}"))
    counts = (make() for make in columns)
    with Progress(doing, *counts, facts, console=stderr, refresh_per_second=4, transient=True) as bar:
        yield Display(True, partial(bar.update, bar.add_task(what, total=None, facts="")))

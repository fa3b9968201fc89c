"""The terminal: its width and its tables, and what is told on the way while something takes long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from dynbench.table_text import printable, split_columns

PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe."""
MOST_WIDTH = 10_000
LONG_CELL = 30
"""Characters from which a cell of several words is a sentence, which may be wrapped."""


class _Console(Console):
    """A console that leaves a closed pipe on stdout to the command line's own handling.

    What is told on the way must not end a run: when nobody reads stderr any more, it leads nowhere.
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
    begin = told = time.monotonic()

    def show(text: str) -> None:
        nonlocal told
        now = time.monotonic()
        if stderr.is_terminal:
            if now - begin >= after_s:
                status.update(Text(printable(text)))
                status.start()
        elif now - told >= line_every_s:
            told = now
            stderr.print(text, soft_wrap=True)

    if wanted and what and stderr.is_terminal:
        show(what)
    try:
        yield show if wanted else lambda text: None
    finally:
        status.stop()


@contextmanager
def progress_bar(what: str, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar between what is being done and facts about it, gone afterwards.

    Args:
        what: is being done at first.
        columns: the bar and what counts beside it.

    Yields:
        Takes `description`, `completed`, `total` and `facts` by name.
    """
    around = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[facts]}")]
    shown = Progress(around[0], *columns, around[1], console=stderr, refresh_per_second=4, transient=True)
    with shown:
        yield partial(shown.update, shown.add_task(what, total=None, facts=""))


def drawn(
    target: Console,
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    keys: int,
    bold: Collection[int],
    beside: Collection[int] = (),
) -> Iterator[str]:
    """A table as text for a console, see `output.print_table`; several below each other where it is too wide.

    Args:
        target: the console.
        columns: the header, of one line or more.
        cells: row by row.
        numeric: which columns hold numbers only.
        keys: how many of the first columns tell the rows apart.
        bold: positions of rows that stand out.
        beside: positions of columns that never stand in another table than the one before them.
    """

    def draw(chosen: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False)
        for index in chosen:
            column = [row[index] for row in cells]
            wrapped = any(map(_is_long, column))
            whole = max(Text(line).cell_len for text in (columns[index], *column) for line in text.split("\n"))
            table.add_column(
                Text(columns[index]),
                justify="right" if numeric[index] else "left",
                no_wrap=not wrapped,
                min_width=None if wrapped else whole,
            )
        for position, row in enumerate(cells):
            table.add_row(*(Text(row[index]) for index in chosen), style="bold" if position in bold else "")
        return table

    def least(chosen: Sequence[int]) -> int:
        return target.measure(draw(chosen), options=target.options.update(width=MOST_WIDTH)).minimum

    def fits(chosen: Sequence[int]) -> bool:
        return not target.is_terminal or least(chosen) <= target.width

    for number, chosen in enumerate(split_columns(len(columns), keys, fits, beside)):
        wide = least(chosen) > target.width
        console = _console(to_stderr=target.stderr, width=least(chosen)) if wide else target
        with console.capture() as captured:
            console.print(draw(chosen))
        yield ("\n" if number else "") + "\n".join(line.rstrip() for line in captured.get().splitlines())


def _is_long(cell: str) -> bool:
    return len(cell) > LONG_CELL and " " in cell

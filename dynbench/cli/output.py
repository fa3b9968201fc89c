"""What the user sees: the result on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynbench.runs.atomic import jsonable

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


def _console(to_stderr: bool, width: int | None = None) -> Console:
    stream = sys.stderr if to_stderr else sys.stdout
    if width is None and not stream.isatty():
        width = PIPE_WIDTH
    return _Console(stderr=to_stderr, width=width, markup=False, highlight=False, emoji=False)


stdout = _console(to_stderr=False)
stderr = _console(to_stderr=True)


def print_json(value: object) -> None:
    """Print exactly one JSON object, on one line, in ASCII whatever the locale; NaN and infinities are null."""
    click.echo(json.dumps(jsonable(value), allow_nan=False))


def print_line(text: str) -> None:
    """Print one line of the result, never wrapped, so that paths can be copied."""
    click.echo(text)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str | None = None,
    *,
    keys: int = 1,
    bold: Collection[int] = (),
) -> None:
    """Print a table; columns that hold numbers only are aligned to the right.

    On a terminal too narrow for it, whole columns go below as a further table that opens with the same keys: no cell is
    cut or broken, only sentences are wrapped.

    Args:
        columns: the header.
        rows: cells; None is empty.
        title: a line above.
        keys: how many of the first columns tell the rows apart.
        bold: positions of rows that stand out.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]

    def draw(chosen: Sequence[int], title: str | None) -> Table:
        table = Table(title=title, box=None, pad_edge=False, title_justify="left")
        for index in chosen:
            column = [row[index] for row in cells]
            numeric = bool(cells) and all(map(_is_number, column))
            table.add_column(
                Text(columns[index]), justify="right" if numeric else "left", no_wrap=not any(map(_is_long, column))
            )
        for position, row in enumerate(cells):
            table.add_row(*(Text(row[index]) for index in chosen), style="bold" if position in bold else "")
        return table

    def least(chosen: Sequence[int]) -> int:
        return stdout.measure(draw(chosen, None), options=stdout.options.update(width=MOST_WIDTH)).minimum

    for number, chosen in enumerate(_parts(len(columns), keys, lambda part: least(part) <= stdout.width)):
        console = stdout if least(chosen) <= stdout.width else _console(to_stderr=False, width=least(chosen))
        with console.capture() as drawn:
            console.print(draw(chosen, None if number else title))
        click.echo(("\n" if number else "") + "\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _parts(columns: int, keys: int, fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Positions of the columns of each table: as many as fit beside the keys, at least one; all of them in a pipe."""
    if not stdout.is_terminal:
        return [list(range(columns))]
    parts = [list(range(min(keys, columns)))]
    for index in range(keys, columns):
        if len(parts[-1]) > keys and not fits([*parts[-1], index]):
            parts.append(list(range(keys)))
        parts[-1].append(index)
    return parts


def _is_long(cell: str) -> bool:
    return len(cell) > LONG_CELL and " " in cell


def print_pairs(title: str, pairs: Mapping[str, object]) -> None:
    """Print a title and, below it, one line per key and value; long values are not wrapped."""
    print_line(title)
    width = max((len(key) for key in pairs), default=0)
    for key, value in pairs.items():
        print_line(f"  {key:<{width}}  {value}")


def show_warnings(warnings: Iterable[str]) -> None:
    """Say on stderr what was found before anything ran, a line each; nothing under `-q`."""
    for warning in warnings:
        logging.getLogger(__name__).warning("%s", warning)


def brief(value: object) -> str:
    """A nested value on one line; mappings within mappings stand in parentheses."""
    if isinstance(value, dict):
        parts = [f"{key} {_nested(item)}" for key, item in value.items() if item is not None]
        return ", ".join(parts) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(brief(item) for item in value)
    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _nested(value: object) -> str:
    return f"({brief(value)})" if isinstance(value, dict) and value else brief(value)


def _is_number(text: str) -> bool:
    return text in ("", "-") or text.replace(",", "").lstrip("+-").replace(".", "", 1).rstrip("%x ").isdigit()


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]  # the stream is looked up at every record
    """Writes to the stderr of the moment, so that a progress bar can draw below."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

    @property
    def stream(self) -> object:
        return sys.stderr


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno == logging.INFO else f"{record.levelname.lower()}: {text}"


def set_up_logging(verbosity: int, debug: bool = False) -> None:
    """Send diagnostics to stderr.

    Args:
        verbosity: -1 errors only, 0 what happens, 1 details of dynbench.
        debug: details of the libraries as well.
    """
    level = logging.ERROR if verbosity < 0 else logging.DEBUG if verbosity > 0 or debug else logging.INFO
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _StderrHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StderrHandler())
    root.setLevel(logging.DEBUG if debug else max(level, logging.WARNING))
    logging.getLogger("dynbench").setLevel(level)

"""What the user sees: the result on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynbench.runs.atomic import jsonable

PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe."""
MOST_WIDTH = 10_000
Form = Literal["table", "md", "csv"]
"""What a result's table is printed as."""
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


_form: Form = "table"
_tells = True


@contextmanager
def stdout_holds(form: Form, *, tells: bool) -> Iterator[None]:
    """While a command runs: `md` and `csv` leave stdout to the table of `print_result` alone.

    Args:
        form: what that table is printed as.
        tells: what else a command prints goes to stderr then; else nowhere.
    """
    global _form, _tells
    before = _form, _tells
    _form, _tells = form, tells
    try:
        yield
    finally:
        _form, _tells = before


def _print(text: str) -> None:
    if _form == "table" or _tells:
        click.echo(text, err=_form != "table")


def print_json(value: object) -> None:
    """Print exactly one JSON object, on one line, in ASCII whatever the locale; NaN and infinities are null."""
    click.echo(json.dumps(jsonable(value), allow_nan=False))


def print_line(text: str) -> None:
    """Print one line of the result, never wrapped, so that paths can be copied."""
    _print(text)


def print_result(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    records: Iterable[Mapping[str, object]],
    *,
    keys: int = 1,
    bold: Collection[int] = (),
) -> None:
    """Print the table that is a command's result, in the form that `--format` asks for.

    Args:
        columns: the header for people, also as Markdown.
        rows: cells for people; None is empty.
        records: for programs, as CSV: names with their units to values in full precision.
        keys: as `print_table` takes it.
        bold: as `print_table` takes it.
    """
    if _form == "table":
        print_table(columns, rows, keys=keys, bold=bold)
        return
    from dynbench.table_text import csv_text, pipes

    if _form == "csv":
        click.echo(csv_text(records), nl=False)
        return
    cells = _texts(rows)
    rule = ["---:" if numeric else "---" for numeric in _numeric(len(columns), cells)]
    click.echo(pipes([columns, rule, *cells]))


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
    cells = _texts(rows)
    numeric = _numeric(len(columns), cells)
    target = stdout if _form == "table" else stderr

    if title is not None:
        _print(title)

    def draw(chosen: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False)
        for index in chosen:
            column = [row[index] for row in cells]
            wrapped = any(map(_is_long, column))
            whole = max(Text(text).cell_len for text in (columns[index], *column))
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

    for number, chosen in enumerate(_parts(len(columns), keys, fits)):
        wide = least(chosen) > target.width
        console = _console(to_stderr=target is stderr, width=least(chosen)) if wide else target
        with console.capture() as drawn:
            console.print(draw(chosen))
        _print(("\n" if number else "") + "\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _texts(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in rows]


def _numeric(columns: int, cells: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold numbers only."""
    return [bool(cells) and all(_is_number(row[index]) for row in cells) for index in range(columns)]


def _parts(columns: int, keys: int, fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Positions of the columns of each table: as many as fit beside the keys, at least one; all of them in a pipe."""
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

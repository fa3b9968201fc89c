"""What the user sees: the result on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from dynbench.errors import UsageError
from dynbench.runs.atomic import jsonable
from dynbench.table_text import Table, csv_text, printable

Form = Literal["table", "md", "csv"]
"""What a result's table is printed as."""
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], object]]
"""The columns of a table: header for people to the key of a row, or to what makes the cell of it."""
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


@contextmanager
def writing(what: object, hint: str = "Name a file in an existing folder.") -> Iterator[None]:
    """While a file is written that the user named.

    Raises:
        UsageError: it cannot be, or is there where a new one is made; `what` says which, else the system.
    """
    try:
        yield
    except FileExistsError as error:
        raise UsageError(f"{what or error.filename}: exists already", "Name another file.") from error
    except OSError as error:
        raise UsageError(f"{what or error.filename}: cannot be written: {error.strerror}", hint) from error


def refuse_existing(path: Path, force: bool) -> None:
    """Raises `UsageError` where a file that is to be written is there, unless `force`."""
    if path.exists() and not force:
        raise UsageError(f"{path}: exists already", "Name another file, or give --force.")


def print_lines(*texts: str | None) -> None:
    """Print lines of the result, never wrapped, so that paths can be copied; None is left out."""
    for text in texts:
        if text is not None:
            _print(printable(text))


def print_results(tables: Sequence[Table], records: Iterable[Mapping[str, object]], bold: Collection[int] = ()) -> None:
    """Print the tables that are a command's result, in the form that `--format` asks for.

    Args:
        tables: for people, also as Markdown.
        records: for programs, as CSV: names with their units to values in full precision.
        bold: positions of rows that stand out.
    """
    if _form == "csv":
        click.echo(csv_text(records), nl=False)
    elif _form == "md":
        click.echo(printable("\n\n".join(table.markdown() for table in tables)))
    else:
        for number, table in enumerate(tables):
            if number:
                _print("")
            show_table(table, bold)


def print_records(
    columns: Columns,
    rows: Sequence[Mapping[str, Any]],
    records: Iterable[Mapping[str, object]] | None = None,
    *,
    keys: int = 1,
    bold: Collection[int] = (),
) -> None:
    """Print rows as the table that is a command's result, see `print_results`.

    Args:
        columns: what the cells are made of; None is an empty cell.
        rows: what they are made from.
        records: for programs; the rows themselves when None.
        keys: how many of the first columns tell the rows apart.
        bold: positions of rows that stand out.
    """
    cells = [[row[cell] if isinstance(cell, str) else cell(row) for cell in columns.values()] for row in rows]
    print_results([_table(columns, cells, keys=keys)], rows if records is None else records, bold)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table under a title; None is an empty cell."""
    show_table(_table(columns, rows, title))


def _table(columns: Iterable[str], rows: Iterable[Sequence[object]], title: str = "", keys: int = 1) -> Table:
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    return Table(list(columns), texts, title, keys=keys)


def show_table(table: Table, bold: Collection[int] = ()) -> None:
    """Print a table; columns that hold numbers only are aligned to the right.

    On a terminal too narrow for it, whole columns go below as a further table that opens with the same keys: no cell is
    cut or broken, only sentences are wrapped.
    """
    from dynbench.cli.console import drawn, stderr, stdout

    if table.title:
        _print(printable(table.title))
    for text in drawn(stdout if _form == "table" else stderr, table, bold):
        _print(text)


def fits(table: Table) -> bool:
    """Whether the table that is a command's result goes into one on this terminal, its first column wrapped at most.

    In files and pipes nothing is wrapped, and Markdown is as wide as it is.
    """
    from rich.cells import cell_len

    from dynbench.cli.console import LONG_CELL, stdout

    if _form == "md":
        return True
    first, *others = (max(map(cell_len, column)) for column in zip(table.columns, *table.rows, strict=True))
    narrowest = min(first, LONG_CELL) if stdout.is_terminal else first
    return narrowest + sum(2 + width for width in others) <= stdout.width


def print_pairs(title: str, pairs: Mapping[str, object]) -> None:
    """Print a title and, below it, one line per key and value; long values are not wrapped."""
    width = max(map(len, pairs), default=0)
    print_lines(title, *(f"  {key:<{width}}  {value}" for key, value in pairs.items()))


def show_markdown(text: str, laid_out: str) -> None:
    """Print Markdown: on a terminal laid out, with commands in whole lines to be pasted, else as it is.

    Args:
        text: for a file or a pipe.
        laid_out: for a terminal.
    """
    if sys.stdout.isatty():
        from dynbench.cli.console import print_markdown

        print_markdown(laid_out)
    else:
        click.echo(text, nl=False)


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
        text = printable(super().format(record))
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

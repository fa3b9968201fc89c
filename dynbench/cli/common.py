"""What commands have in common: what their shared options said, and how a result is shown.

The result goes to stdout, everything else to stderr. `next_command` and `setting_words` write commands that say the
same again.
"""

from __future__ import annotations

import csv
import json
import logging
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dynbench.cli.main import load_command
from dynbench.errors import UsageError
from dynbench.runs.atomic import jsonable
from dynbench.table_text import Table, csv_text, printable

if TYPE_CHECKING:
    from dynbench.config.schema import Config
    from dynbench.runs.run import Run
    from dynbench.runs.store import Naming, RunStore

Form = Literal["table", "md", "csv"]
"""What a result's table is printed as."""
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], object]]
"""The columns of a table: header for people to the key of a row, or to what makes the cell of it."""
_form: Form = "table"
_tells = True

# Settings -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the configuration: a row of `flags.csv`.

    Args:
        group: heading in the help.
        common: `--help` lists it, not only `--help-all`.
        names: as typed, with dashes; the first is its name, the others are other spellings.
        key: dotted key that it sets.
        metavar: what stands for the value in the help; the choices where there are some.
        choices: all values, where they are few and fixed.
        default: that of its field, where it is a word or a number.
        help: one line.
    """

    group: str
    common: bool
    names: tuple[str, ...]
    key: str
    metavar: str
    choices: tuple[str, ...]
    default: str
    help: str

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"


def _read_flags() -> Iterator[Flag]:
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            names, choices = (tuple(filter(None, row[column].split("|"))) for column in ("option", "choices"))
            metavar = row["metavar"] or row["choices"]
            rest = (choices, row["default"], row["help"])
            yield Flag(row["group"], bool(row["common"]), names, row["key"], metavar, *rest)


FLAGS = tuple(_read_flags())


@dataclass(frozen=True)
class Settings:
    """What the shared options said.

    Args:
        command: as its JSON names it: `train`, `runs ls`.
        config_path: the file of `-c/--config`.
        overrides: the texts of `--set`.
        flags: dotted key to value of the flags that were given.
        results: the folder of `--results`.
        as_json: `--json` was given: print one object and nothing else on stdout.
        verbosity: -1 under `-q`, 1 under `-v`, else 0.
        form: what the result's table is printed as, by `--format`.
        launches: key of `launches` to what its option was given, or None; empty for commands without these options.
        naming: what `--name` and `--replace` were given; empty for commands without these options.
    """

    command: str = ""
    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    results: Path | None = None
    as_json: bool = False
    verbosity: int = 0
    form: Form = "table"
    launches: Mapping[str, object] = field(default_factory=dict)
    naming: Naming = field(default_factory=dict)  # type: ignore[assignment]  # a TypedDict without its keys

    def config(self, *, paths: bool = False, trains: bool = True) -> Config:
        """The configuration: flags over `--set` over the file over the defaults.

        Args:
            paths: also look up the files and folders that training reads.
            trains: ranks are to train with it; False leaves out the rules on their batches.

        Raises:
            ConfigError: every mistake found.
        """
        from dynbench.config.layers import load_config

        return load_config(self.config_path, self.overrides, self.flags, paths=paths, trains=trains)

    def with_flags(self, flags: Mapping[str, object]) -> Settings:
        """The same with more settings, as if flags had given them."""
        return replace(self, flags={**self.flags, **flags})

    def store(self) -> RunStore:
        """The run registry."""
        from dynbench.runs.store import RunStore, default_root

        return RunStore(self.results or default_root())

    @property
    def sets(self) -> dict[str, str]:
        """Dotted key to option, of what `--set` and the flags set."""
        keys = [text.partition("=")[0].strip() for text in self.overrides]
        names = {flag.key: flag.names[0] for flag in FLAGS}
        flags = {key: names.get(key, f"--compress-config {key}") for key in self.flags}
        return {key: f"--set {key}" for key in keys if key} | flags

    @property
    def configures(self) -> bool:
        """Whether a file, `--set` or a flag sets anything of the configuration."""
        return bool(self.config_path or self.overrides or self.flags)

    @property
    def quiet(self) -> bool:
        """Under `-q`: the result is a line for a script, the path of what was made or shown, or the verdict.

        Where `--format` asks for the result as a table, that is the result, and nothing else is printed.
        """
        return self.verbosity < 0 and self.form == "table"

    @property
    def for_people(self) -> bool:
        """Whether the result is shown to people, neither as JSON nor in lines for a script."""
        return not (self.as_json or self.quiet)

    @property
    def shows_progress(self) -> bool:
        """False under `-q`."""
        return self.verbosity >= 0

    def working(
        self, what: str = "", *, after_s: float = 0.0, line_every_s: float = 0.0
    ) -> AbstractContextManager[Callable[[str], None]]:
        """See `console.working`; shows nothing under `-q`."""
        from dynbench.cli.console import working

        return working(self.shows_progress, what, after_s=after_s, line_every_s=line_every_s)

    def printed(self, content: Mapping[str, object], short: str | Iterable[str] = ()) -> bool:
        """Print a result for a program where one asked for it; False where it is left to be shown to people.

        Args:
            content: of the object under `--json`.
            short: what is printed under `-q`, in lines.
        """
        if self.as_json:
            print_json(self.record(content))
        elif self.quiet:
            print_lines(*([short] if isinstance(short, str) else short))
        return not self.for_people

    def record(self, content: Mapping[str, object]) -> dict[str, object]:
        """The object that is printed under `--json`."""
        return {"schema_version": 1, "command": self.command, **content}


def next_command(command: str, *words: str, root: Path) -> str:
    """A command with its words; the registry is named where it is not the default one.

    Args:
        command: as typed.
        words: arguments and options, not quoted yet.
        root: folder of the registry.
    """
    from dynbench.runs.store import results_option

    return f"dynbench {shlex.join([command, *words])}{results_option(root)}"


def setting_words(command: str, run: Run, overrides: Mapping[str, object]) -> list[str]:
    """The options that give a command the configuration of a run with other values.

    Args:
        command: one that takes `-c` and `--set`.
        run: whose `config.yaml` is given with `-c`.
        overrides: dotted key to value; those that the run has are left out, and the others written as flags where the
            command has one.
    """
    from dynbench.config.layers import replaced_by
    from dynbench.config.schema import changed, differences, value_of
    from dynbench.config.values import written

    config = run.config()
    wanted = changed(config, overrides)
    differing = differences(config, wanted)
    taken = {parameter.name for parameter in load_command(command).params}
    flags = {flag.key: flag.names[0] for flag in FLAGS if flag.parameter in taken}
    words = ["-c", str(run.config_file)]
    for key in overrides:
        # Also where the run has the value, but says it in another way: samples per worker for the global batch.
        if key in differing or any(value_of(config, other) is not None for other in replaced_by([key])):
            text = written(key, value_of(wanted, key))
            words += [flags[key], text] if key in flags else ["--set", f"{key}={text}"]
    return words


# Output ---------------------------------------------------------------------------------------------------------------


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

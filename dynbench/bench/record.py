"""Options of a benchmark, and what its run holds: its name, these, and its rows as rank 0 writes them.

Rows are a JSON list per case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dynbench.bench.base import Benchmark, Cell, Row
from dynbench.config.layers import freeze
from dynbench.config.values import not_allowed, read_field
from dynbench.config.yaml_strict import Value
from dynbench.errors import ConfigError, RecordError, did_you_mean
from dynbench.plugins import BENCHMARKS, Section
from dynbench.runs.atomic import first_error, jsonable, read_json, write_json
from dynbench.runs.run import Run

BENCH_FILE = "bench.json"
_REMEDY = "Only what dynbench bench made is a benchmark's run."


@dataclass(frozen=True)
class _StoredRow(Row):
    """A row as it is read: numbers are finite, and a null in a column is a number that was none."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)
    columns: Mapping[str, Cell | None] = field(default_factory=dict)  # type: ignore[assignment]  # wider: null


_ROWS: TypeAdapter[list[_StoredRow]] = TypeAdapter(Annotated[list[_StoredRow], Field(min_length=1)])


def read_options(name: str, texts: Sequence[str]) -> Section:
    """The options of a benchmark from texts like `sizes_mib=1,10`.

    Raises:
        UsageError: no such benchmark.
        ConfigError: every mistake found.
    """
    options = BENCHMARKS.find(name).options
    fields, problems = options.model_fields, []
    values: dict[str, Value] = {}
    for text in texts:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(f"--set {text}: write it as key=value")
        elif key not in fields:
            problems.append(f"--set {key}: no option of {name}. {did_you_mean(key, fields)}".rstrip())
        else:
            try:
                values[key] = read_field(fields[key], (), raw, f"--set {key}")
            except ConfigError as error:
                problems += error.problems
    try:
        found = options.model_validate(freeze(values))
    except ValidationError as error:
        wrong = dict.fromkeys(str(item["loc"][0]) for item in error.errors())
        problems += [f"--set {key}: {not_allowed(fields[key], values[key])}" for key in wrong]
    if problems:
        raise ConfigError(problems, f"Options of {name}: {', '.join(fields)}.")
    return found


def write_benchmark(run: Run, name: str, benchmark: Benchmark) -> None:
    """Keep which benchmark the run is of, for its ranks."""
    write_json(run.path / BENCH_FILE, {"name": name, "options": benchmark.options.model_dump(mode="json")})


@dataclass(frozen=True)
class _Choice:
    """The content of `bench.json`."""

    name: str
    options: dict[str, object]


def read_name(run: Run) -> str:
    """Name of the benchmark that a run is of.

    Raises:
        RecordError: it is of none.
    """
    return read_json(run.path / BENCH_FILE, _Choice, _REMEDY).name


def read_benchmark(run: Run) -> Benchmark:
    """The benchmark of a run with its options.

    Raises:
        RecordError: the run is of none.
        UsageError: no such benchmark in this version.
    """
    choice = read_json(run.path / BENCH_FILE, _Choice, _REMEDY)
    entry = BENCHMARKS.find(choice.name)
    try:
        options = entry.options.model_validate_json(json.dumps(choice.options))
    except ValidationError as error:
        raise RecordError(f"{run.path / BENCH_FILE}: {first_error(error, 'options')}", _REMEDY) from error
    found: Benchmark = entry.load()(options)
    found.folder = run.path
    return found


def rows_file(run: Run) -> Path:
    """Where the rows lie."""
    return run.ranks_dir / "rows.jsonl"


def add_rows(run: Run, rows: Sequence[Row]) -> None:
    """Append the rows of a case, in one write: a line that is a list."""
    add_line(rows_file(run), jsonable(rows))


def add_line(path: Path, value: object) -> None:
    """Append a value as a line of JSON, in place of what a write before that was cut short left.

    Raises:
        OSError: the disk is full; names the file.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with os.fdopen(file, "r+b") as lines:
            lines.seek(lines.read().rfind(b"\n") + 1)
            lines.truncate()
            lines.write(json.dumps(value, allow_nan=False).encode() + b"\n")
    except OSError as error:
        error.filename = str(path)
        raise


def read_rows(run: Run) -> list[Row]:
    """The rows so far; a torn last line is left out.

    Raises:
        RecordError: another line is no list of rows.
    """
    return [row for case in _by_case(run) for row in case]


def cases_done(run: Run) -> int:
    """How many cases have their rows; nothing is parsed, as this is called while something is timed."""
    return rows_file(run).read_bytes().count(b"\n") if rows_file(run).exists() else 0


def check_rows(run: Run, benchmark: Benchmark) -> None:
    """Refuse to go on with rows of other cases than are measured here: of another machine, version, or by hand.

    Raises:
        RecordError: the first of them.
    """
    found, known = _by_case(run), benchmark.cases()
    for position, rows in enumerate(found):
        case = known[position] if position < len(known) else None
        if case is None or any(row.case != case.name or not row.columns.keys() >= case.columns.keys() for row in rows):
            here = "there is none more" if case is None else f"case {position + 1} is {case.name!r}"
            raise RecordError(
                f"{rows_file(run)}: holds rows of {rows[0].case!r} where, here and now, {here}",
                "A benchmark goes on where its cases are the same: with its version of dynbench, on such a machine.",
            )
    try:
        benchmark.summary([row for rows in found for row in rows])
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise RecordError(f"{rows_file(run)}: holds rows without a summary ({said})", _REMEDY) from error


def _by_case(run: Run) -> Sequence[Sequence[Row]]:
    if not rows_file(run).exists():
        return []
    complete, newline, _ = rows_file(run).read_bytes().rpartition(b"\n")
    try:
        return [_ROWS.validate_json(line) for line in complete.split(b"\n")] if newline else []
    except ValidationError as error:
        said = error.errors(include_url=False)[0]["msg"]
        raise RecordError(f"{rows_file(run)}: holds what is no row of a benchmark ({said})", _REMEDY) from error

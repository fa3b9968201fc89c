"""What a benchmark's run holds: its name and options, and its rows as rank 0 writes them, a JSON list per case."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dynbench.bench.base import Benchmark, Row
from dynbench.errors import RecordError
from dynbench.plugins import BENCHMARKS
from dynbench.runs.atomic import jsonable, write_json
from dynbench.runs.json_record import read_json
from dynbench.runs.run import Run

BENCH_FILE = "bench.json"
_REMEDY = "Only what dynbench bench made is a benchmark's run."
_ROW = TypeAdapter(Row)
_CELLS = (int, float, str, type(None))
"""What a column holds; null is a number that is none."""


def write_benchmark(run: Run, name: str, benchmark: Benchmark) -> None:
    """Keep which benchmark the run is of, for its ranks."""
    write_json(run.path / BENCH_FILE, {"name": name, "options": benchmark.options.model_dump(mode="json")})


@dataclass(frozen=True)
class Asked:
    """What `bench.json` holds."""

    name: str
    options: dict[str, object]


def read_name(run: Run) -> str:
    """Which benchmark a run is of.

    Raises:
        RecordError: it is of none.
    """
    return _asked(run).name


def read_benchmark(run: Run) -> Benchmark:
    """The benchmark of a run with its options.

    Raises:
        RecordError: the run is of none.
        UsageError: no such benchmark in this version.
    """
    asked = _asked(run)
    entry = BENCHMARKS.find(asked.name)
    try:
        options = entry.options.model_validate_json(json.dumps(asked.options))
    except ValidationError as error:
        said = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("options", *said["loc"]))
        raise RecordError(f"{run.path / BENCH_FILE}: {where}: {said['msg']}", _REMEDY) from error
    found: Benchmark = entry.load()(options)
    found.folder = run.path
    return found


def _asked(run: Run) -> Asked:
    return read_json(run.path / BENCH_FILE, Asked, _REMEDY)


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
    """How many cases have their rows; nothing is parsed, as this is asked while something is timed."""
    return rows_file(run).read_bytes().count(b"\n") if rows_file(run).exists() else 0


def check_rows(run: Run, benchmark: Benchmark) -> None:
    """Refuse to go on with rows of other cases than are measured here: of another machine, version, or by hand.

    Raises:
        RecordError: the first of them; or the benchmark can say nothing of the rows.
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
    rows = [row for case in found for row in case]
    try:
        for say in (benchmark.summary, benchmark.said, benchmark.further_files):
            say(rows)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise RecordError(f"{rows_file(run)}: holds rows of which nothing can be said ({said})", _REMEDY) from error


def _by_case(run: Run) -> list[list[Row]]:
    if not rows_file(run).exists():
        return []
    complete, newline, _ = rows_file(run).read_text(encoding="utf-8", errors="replace").rpartition("\n")
    try:
        return [_rows(json.loads(line)) for line in complete.split("\n")] if newline else []
    except (ValueError, TypeError, RecursionError) as error:
        said = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise RecordError(f"{rows_file(run)}: holds what is no row of a benchmark ({said})", _REMEDY) from error


def _rows(line: object) -> list[Row]:
    """The rows of a case."""
    if not isinstance(line, list) or not line:
        raise ValueError("expected a list of rows")
    return [_row(each) for each in line]


def _row(content: object) -> Row:
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    columns = content.get("columns", {})
    row = _ROW.validate_python({**content, "columns": {}})
    if not isinstance(columns, dict) or not all(isinstance(each, _CELLS) for each in columns.values()):
        raise ValueError("expected columns of numbers and texts")
    numbers = (row.mean, row.sd, row.p20, row.p50, row.p80, row.reference_error, *columns.values())
    if not all(math.isfinite(each) for each in numbers if isinstance(each, float)):
        raise ValueError("expected finite numbers")
    return replace(row, columns=columns)

"""What a benchmark's run holds: its name and options, and its rows as rank 0 writes them, a JSON list per case."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dynbench.bench.base import Benchmark, Row
from dynbench.errors import RecordError
from dynbench.plugins import BENCHMARKS
from dynbench.runs.atomic import jsonable, write_json
from dynbench.runs.json_record import read_json
from dynbench.runs.run import Run

BENCH_FILE = "bench.json"
_REMEDY = "Only what dynbench bench made is a benchmark's run."


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
    with rows_file(run).open("a", encoding="utf-8") as file:
        file.write(json.dumps(jsonable(rows), allow_nan=False) + "\n")


def read_rows(run: Run) -> list[Row]:
    """The rows so far; a torn last line is left out.

    Raises:
        RecordError: another line is no list of rows.
    """
    return [row for case in _by_case(run) for row in case]


def cases_done(run: Run) -> int:
    """How many cases have their rows."""
    return len(_by_case(run))


def _by_case(run: Run) -> list[list[Row]]:
    if not rows_file(run).exists():
        return []
    complete, newline, _ = rows_file(run).read_text(encoding="utf-8", errors="replace").rpartition("\n")
    try:
        return [[Row(**row) for row in json.loads(line)] for line in complete.splitlines()] if newline else []
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"{rows_file(run)}: holds what is no row of a benchmark ({error})", _REMEDY) from error

"""What a benchmark's run holds: its name and options, and its rows as rank 0 writes them, a JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from dynbench.bench.base import Benchmark, Row
from dynbench.plugins import BENCHMARKS
from dynbench.runs.atomic import jsonable, write_json
from dynbench.runs.run import Run

BENCH_FILE = "bench.json"


def write_benchmark(run: Run, name: str, benchmark: Benchmark) -> None:
    """Keep which benchmark the run is of, for its ranks."""
    write_json(run.path / BENCH_FILE, {"name": name, "options": benchmark.options.model_dump(mode="json")})


def read_benchmark(run: Run) -> Benchmark:
    """The benchmark of a run with its options."""
    asked = json.loads((run.path / BENCH_FILE).read_text(encoding="utf-8"))
    entry = BENCHMARKS.find(asked["name"])
    found: Benchmark = entry.load()(entry.options.model_validate_json(json.dumps(asked["options"])))
    return found


def rows_file(run: Run) -> Path:
    """Where the rows lie."""
    return run.ranks_dir / "rows.jsonl"


def add_row(run: Run, row: Row) -> None:
    """Append a row, in one write."""
    with rows_file(run).open("a", encoding="utf-8") as file:
        file.write(json.dumps(jsonable(row), allow_nan=False) + "\n")


def read_rows(run: Run) -> list[Row]:
    """The rows so far; a torn last line is left out."""
    if not rows_file(run).exists():
        return []
    complete, newline, _ = rows_file(run).read_text(encoding="utf-8").rpartition("\n")
    return [Row(**json.loads(line)) for line in complete.splitlines()] if newline else []

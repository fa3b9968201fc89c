"""A benchmark's folder that somebody changed: what is none of its own is named, file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynbench.bench.base import Row
from dynbench.bench.record import BENCH_FILE, add_rows, read_benchmark, read_rows, rows_file, write_benchmark
from dynbench.errors import RecordError, UsageError
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import CollectivesOptions
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = RunStore(tmp_path / "results").create("bench", "collectives")
    write_benchmark(made, "collectives", BENCHMARKS.find("collectives").load()(CollectivesOptions()))
    add_rows(made, [Row("all_reduce 1 MiB", (262144,), "float32", "cpu")])
    return made


def test_it_is_read_as_it_was_written(run: Run) -> None:
    assert read_benchmark(run).options == CollectivesOptions()
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB"]


@pytest.mark.parametrize("options", [{"iterations": "many"}, {"itreations": 3}, {"sizes_mib": []}])
def test_options_that_are_none(run: Run, options: dict[str, object]) -> None:
    (run.path / BENCH_FILE).write_text(json.dumps({"name": "collectives", "options": options}))
    with pytest.raises(RecordError, match=rf"{BENCH_FILE}: options\.{next(iter(options))}: "):
        read_benchmark(run)


def test_a_benchmark_that_is_none(run: Run) -> None:
    (run.path / BENCH_FILE).write_text(json.dumps({"name": "../x", "options": {}}))
    with pytest.raises(UsageError, match="is not a benchmark"):
        read_benchmark(run)


@pytest.mark.parametrize("line", ["{", "3", '[{"case": 1}]', '[{"other": 1}]', "[1]", "[" * 100_000])
def test_rows_that_are_none(run: Run, line: str) -> None:
    rows_file(run).write_text(f"{line}\n")
    with pytest.raises(RecordError, match="holds what is no row of a benchmark"):
        read_rows(run)

"""A benchmark's folder that somebody changed: what is none of its own is named, file and key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dynbench.bench.base import Case, Row
from dynbench.bench.collectives import Collectives
from dynbench.bench.nsys import Nsys
from dynbench.bench.record import (
    BENCH_FILE,
    add_rows,
    cases_done,
    check_rows,
    read_benchmark,
    read_rows,
    rows_file,
    write_benchmark,
)
from dynbench.errors import RecordError, UsageError
from dynbench.plugins.benchmarks import CollectivesOptions, NsysOptions
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture
def run(store: RunStore) -> Run:
    made = store.create("bench", "collectives")
    write_benchmark(made, "collectives", Collectives(CollectivesOptions(iterations=3)))
    add_rows(made, [Row("all_reduce 1 MiB", (262144,), "float32", "cpu")])
    return made


def row_of(case: Case) -> Row:
    return Row(case.name, case.shape, case.dtype, "cpu", columns=case.columns)


def test_it_is_read_as_it_was_written(run):
    assert read_benchmark(run).options == CollectivesOptions(iterations=3)
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB"]


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        *(
            ("collectives", {key: value}, RecordError, rf"{BENCH_FILE}: options\.{key}: ")
            for key, value in (("iterations", "many"), ("itreations", 3), ("sizes_mib", []))
        ),
        ("../x", {}, UsageError, "is not a benchmark"),
    ],
)
def test_a_benchmark_or_options_that_are_none(run, name, options, error, said):
    (run.path / BENCH_FILE).write_text(json.dumps({"name": name, "options": options}))
    with pytest.raises(error, match=said):
        read_benchmark(run)


ROW = '{"case": "a", "shape": [1], "dtype": "float32", "device": "cpu"'
WRONG = ('"p50": "x"', '"mean": 1e999', '"sd": NaN', '"shape": 3', '"status": "fine"', '"columns": {"x": 1e999}')
NO_ROWS = ("{", "3", '[{"case": 1}]', '[{"other": 1}]', "[1]", "[" * 100_000, "[]")


@pytest.mark.parametrize("line", [*NO_ROWS, *(f"[{ROW}, {more}}}]" for more in WRONG)])
def test_rows_that_are_none(run, line):
    rows_file(run).write_text(f"{line}\n")
    with pytest.raises(RecordError, match="holds what is no row of a benchmark"):
        read_rows(run)


def test_a_row_goes_in_the_place_of_a_torn_one(run):
    with rows_file(run).open("a") as file:
        file.write('[{"case": "b"')
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB"] and cases_done(run) == 1
    add_rows(run, [Row("c", (1,), "float32", "cpu", columns={"mfu": float("nan")})] * 2)
    assert [row.case for row in read_rows(run)] == ["all_reduce 1 MiB", "c", "c"] and cases_done(run) == 2
    assert read_rows(run)[1].columns == {"mfu": None}


def test_a_later_version_may_say_more_of_a_row(run):
    rows_file(run).write_text(f'[{ROW}, "p99": 3.0}}]\n')
    assert [row.case for row in read_rows(run)] == ["a"]


def test_rows_of_other_cases_are_not_gone_on_with(run):
    benchmark = read_benchmark(run)
    first, second = benchmark.cases()[:2]
    with pytest.raises(RecordError, match=f"'all_reduce 1 MiB' where, here and now, case 1 is '{first.name}'"):
        check_rows(run, benchmark)
    rows_file(run).unlink()
    add_rows(run, [row_of(first)] * 2)
    check_rows(run, benchmark)
    add_rows(run, [replace(row_of(second), columns={})])
    with pytest.raises(RecordError, match="holds rows of"):
        check_rows(run, benchmark)


def test_rows_without_a_summary_are_not_gone_on_with(run):
    benchmark = Nsys(NsysOptions())
    rows_file(run).unlink()
    add_rows(run, [replace(row_of(benchmark.cases()[0]), mean=1.0)])
    with pytest.raises(RecordError, match="holds rows without a summary"):
        check_rows(run, benchmark)

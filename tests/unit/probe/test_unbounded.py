"""Where no trial failed there is no limit: in the search, the tables, the soak, the record and the figure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl
import pytest

from dynbench.config.schema import Probe
from dynbench.probe.capacity import capacity_tables, find_capacities, soak
from dynbench.probe.fit import fit_memory
from dynbench.runs.probe_record import CapacityRow, ProbeRecord, read_probe
from dynbench.schedule.capacity import UNLIMITED, Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem

LENGTHS = (32, 64, 128)
CEILING = 31
Fits = Callable[[int, int, int], bool]
"""Whether n samples of a length fit on a rank."""


class FakeRanks:
    """Answers like trial processes, from a rule instead of memory."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        return [self._answer(rank, **request) for rank, request in enumerate(requests)]

    def ask_all(self, request: Mapping[str, object], *, together: bool = False) -> list[dict[str, object]]:
        return self.ask([request, request])

    def _answer(self, rank: int, op: str, **asked: object) -> dict[str, object]:
        if op == "trial":
            n, length = asked["n"], asked["length"]
            return {"fits": self._fits(rank, n, length), "peak_mem_mb": 100.0 + 0.1 * n * length}
        if op == "soak":
            for n, length in asked["micro_batches"]:
                if not self._fits(rank, n, length):
                    return {"ok": False, "n": n, "length": length}
            return {"ok": True, "peak_mem_mb": 1.0, "reserved_mem_mb": 1.0, "allocator_retries": None}
        return {"ms": 1.0}

    @contextlib.contextmanager
    def start(self) -> Iterator[FakeRanks]:
        yield self


def search(fits: Fits) -> tuple[list[CapacityRow], list[list[tuple[int, int | None]]]]:
    """Rows and tables of two ranks."""
    found = find_capacities(FakeRanks(fits).start, LENGTHS, 2, CEILING, Probe(), lambda text: None)
    return found.rows, capacity_tables(found.rows, fit_memory(found.trials), 2)


def within_tokens(*limits: int) -> Fits:
    return lambda rank, n, length: n * length <= limits[rank]


def test_a_search_that_never_failed_leaves_no_limit() -> None:
    rows, tables = search(lambda *_: True)
    assert {(row.max_batch, row.tested_ok, row.tested_fail) for row in rows} == {(CEILING, CEILING, None)}
    assert {most for table in tables for _, most in table} == {None}
    capacity = Capacity.table(tables)
    assert capacity.limit(1, 128) == UNLIMITED
    assert capacity.limit(1, 129) == 0, "nothing was tried there"


def test_limits_begin_where_something_failed_and_only_on_that_rank() -> None:
    _, (first, second) = search(within_tokens(10**6, 1300))
    assert {most for _, most in first} == {None}
    limits = dict(second)
    assert limits[32] is None
    assert limits[64] == 18 and limits[128] == 9, "what passed, less the margin"
    between = [limits[length] for length in range(40, 64, 8)]
    assert None not in between and between == sorted(between, reverse=True)
    assert min(between) >= 18


def test_what_the_memory_model_says_is_not_cut_to_the_largest_size_tried() -> None:
    limits = dict(search(within_tokens(3000, 3000))[1][0])
    assert limits[64] is None and limits[128] == 20
    assert limits[72] == 35, "20 x 128 tokens in as many of 72, though nothing above 31 was tried"


def test_a_failure_at_a_shorter_length_limits_the_longer_ones() -> None:
    rows, (table, _) = search(lambda rank, n, length: length != 32 or n <= 10)
    assert {row.length: row.tested_fail for row in rows if row.rank == 0} == {32: 11, 64: 11, 128: 11}
    assert {most for _, most in table} == {9}


def problem(global_batch: int = 32) -> Problem:
    lengths = pl.Series([8] * 400 + [60] * 100).to_numpy().copy()
    return Problem(lengths, workers=2, global_batch=global_batch, cost=CostModel("tokens"))


@pytest.mark.parametrize("dies", [False, True])
def test_a_soak_that_fails_finds_the_limit(dies: bool) -> None:
    rows, _ = search(lambda *_: True)

    class Ranks(FakeRanks):
        died = False

        def ask(self, requests: Sequence[Mapping[str, object]]) -> list[dict[str, object] | None]:
            replies = super().ask(requests)
            if dies and not self.died:
                self.died = True
                return [None, replies[1]]
            return replies

    fits: Fits = (lambda *_: True) if dies else (lambda rank, n, length: rank == 1 or length < 40 or n <= 5)
    outcome, after = soak(Ranks(fits).start, problem(), rows, None, 5, lambda text: None)
    assert outcome is not None and outcome.ok and outcome.shrunk >= 1
    (first, second) = (dict(table) for table in capacity_tables(after, None, 2))
    assert set(second.values()) == {None}
    assert first[64] is not None and first[64] < CEILING
    assert (first[32] is None) is not dies, "at lengths below the failed one nothing is known to fail"


RECORD: dict[str, object] = {
    "device": "cpu", "precision": "fp32", "memory_limit_mb": 1.0, "world_size": 2, "global_batch": 32,
    "pad_to_multiple_of": 1, "workload": {}, "timings": [], "cost_model": None, "memory_model": None,
    "speeds": [1.0, 1.0], "allreduce": None, "soak": None, "predicted_speedup": {}, "break_even_batch": None,
}  # fmt: skip


def row(length: int, max_batch: int, tested_fail: int | None, rank: int = 0) -> dict[str, object]:
    tested = {"tested_ok": max_batch, "tested_fail": tested_fail, "peak_mem_mb": None}
    return {"rank": rank, "length": length, "max_batch": max_batch, **tested}


def written(folder: Path, **content: object) -> ProbeRecord:
    trials = [{"rank": 0, "length": 32, "n": 4, "fits": True, "peak_mem_mb": None}]
    (folder / "probe.json").write_text(json.dumps({**RECORD, "trials": trials, **content}))
    return read_probe(folder)


def test_a_record_of_the_first_version_is_read_without_its_ceilings(tmp_path: Path) -> None:
    capacity = [row(32, 31, None), row(64, 31, None), row(128, 20, 24), row(32, 9, 10, 1), row(64, 9, None, 1)]
    tables = [[(32, 31), (40, 31), (64, 31), (72, 28), (128, 20)], [(32, 9), (64, 9)]]
    old = written(tmp_path, schema_version=1, capacity=capacity, tables=tables)
    assert old.tables == [[(32, None), (40, None), (64, None), (72, 28), (128, 20)], tables[1]]
    new = written(tmp_path, schema_version=2, capacity=capacity, tables=tables)
    assert new.tables == tables

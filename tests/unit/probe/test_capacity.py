"""Capacities: searched, tabulated, and lowered until the soak passes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Probe
from dynbench.probe.capacity import (
    CapacitySearch,
    capacity_tables,
    find_capacities,
    length_grid,
    monotone,
    soak,
    with_margin,
)
from dynbench.probe.fit import fit_memory
from dynbench.runs.probe_record import CapacityRow, MemoryFit, ProbeRecord, Soak, read_probe
from dynbench.schedule.capacity import UNLIMITED, Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem, make_policy


def run(search: CapacitySearch, threshold: int) -> int:
    trials = 0
    while (n := search.next_trial()) is not None:
        search.record(n, n <= threshold)
        trials += 1
        assert trials < 100
    return trials


@given(
    threshold=st.integers(0, 5000),
    start=st.integers(1, 6000),
    ceiling=st.integers(1, 4000),
    gap=st.floats(0.001, 0.5),
)
def test_answer_is_within_the_gap(threshold: int, start: int, ceiling: int, gap: float) -> None:
    search = CapacitySearch(start=start, ceiling=ceiling, gap=gap)
    run(search, threshold)
    assert search.largest_ok <= min(threshold, ceiling)
    if threshold >= ceiling:
        assert search.largest_ok == ceiling
        assert search.smallest_fail is None
    elif threshold == 0:
        assert search.largest_ok == 0
        assert search.smallest_fail == 1
    else:
        assert search.smallest_fail is not None
        assert search.smallest_fail > threshold
        assert search.smallest_fail - search.largest_ok <= max(1, gap * search.largest_ok)


@given(threshold=st.integers(1, 5000), start=st.integers(1, 5000))
def test_number_of_trials_is_logarithmic(threshold: int, start: int) -> None:
    assert run(CapacitySearch(start=start, gap=0.05), threshold) <= 30


def test_unrecorded_trial_is_asked_again() -> None:
    search = CapacitySearch(start=8)
    assert search.next_trial() == search.next_trial() == 8


def test_later_failure_takes_success_back() -> None:
    search = CapacitySearch(start=4, gap=0.01)
    search.record(4, True)
    search.record(8, True)
    search.record(8, False)
    assert (search.largest_ok, search.smallest_fail) == (4, 8)
    run(search, 5)
    assert search.largest_ok == 5


@given(st.dictionaries(st.integers(1, 512), st.integers(0, 1000), min_size=1))
def test_monotone_repair_only_lowers(capacity: dict[int, int]) -> None:
    repaired = monotone(capacity)
    lengths = sorted(repaired)
    assert all(repaired[a] >= repaired[b] for a, b in pairwise(lengths))
    assert all(repaired[length] <= capacity[length] for length in lengths)
    assert min(repaired.values()) == min(capacity.values())


def test_margin_leaves_one() -> None:
    assert with_margin(100, 0.1) == 90
    assert with_margin(1, 0.9) == 1
    assert with_margin(0, 0.1) == 0


def test_length_grid() -> None:
    assert length_grid(256) == (32, 64, 128, 256)
    assert length_grid(100) == (32, 64, 100)
    assert length_grid(20) == (20,)
    assert length_grid(256, [64, 16, 64]) == (16, 64)


Reply = dict[str, object] | None
PASSED: Reply = {"ok": True, "peak_mem_mb": 1.0, "reserved_mem_mb": 1.0, "allocator_retries": None}


class Ranks:
    """Two trial processes whose first answers to a soak are given and whose later ones are that it passed."""

    def __init__(self, first: Reply) -> None:
        self._replies: list[Reply] = [first]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[Reply]:
        return [self._replies.pop() if self._replies else PASSED, *[PASSED] * (len(requests) - 1)]


def row(rank: int, length: int, most: int, fail: int | None) -> CapacityRow:
    return CapacityRow(rank=rank, length=length, max_batch=most, tested_ok=most, tested_fail=fail, peak_mem_mb=None)


def soaked(first: Reply, fail: Callable[[int], int | None]) -> tuple[bool, dict[int, int]]:
    """Whether the soak passed in the end, and rank 0's capacities by length."""
    ranks = Ranks(first)
    rows = [row(rank, length, most, fail(most)) for rank in (0, 1) for length, most in ((32, 4), (64, 1))]
    lengths = np.array([8] * 90 + [60] * 10)
    problem = Problem(lengths, workers=2, global_batch=3, cost=CostModel("tokens"))
    outcome, after = soak(lambda: ranks, problem, rows, None, 5, lambda _: None)
    return bool(outcome and outcome.ok), {row.length: row.max_batch for row in after if row.rank == 0}


@pytest.mark.parametrize("found_limit", [True, False])
@pytest.mark.parametrize("first", [None, {"ok": False, "n": 2, "length": 8}, {"ok": False, "n": 1, "length": 100}])
def test_one_sample_that_passed_its_trial_is_left(first: Reply, found_limit: bool) -> None:
    passed, capacities = soaked(first, lambda most: most + 1 if found_limit else None)
    assert passed
    assert capacities[64] == 1
    assert 1 <= capacities[32] <= 4


@pytest.mark.parametrize("found_limit", [True, False])
def test_one_sample_that_failed_alone_is_not(found_limit: bool) -> None:
    first: Reply = {"ok": False, "n": 1, "length": 60}
    _, capacities = soaked(first, lambda most: most + 1 if found_limit else None)
    assert capacities[64] == 0
    assert capacities[32] >= 1


def test_what_passed_alone_and_failed_in_the_soak_gets_the_margin_that_the_others_have() -> None:
    """Where no limit had been found: it had no margin, and it alone is lowered."""
    ranks = Ranks({"ok": False, "n": 4, "length": 30})
    rows = [row(rank, length, most, fail) for rank in (0, 1) for length, most, fail in ((32, 10, None), (64, 9, 10))]
    problem = Problem(np.array([8] * 90 + [60] * 10), workers=2, global_batch=8, cost=CostModel("tokens"))
    outcome, after = soak(lambda: ranks, problem, rows, None, 5, lambda _: None, None, 0.2)
    assert outcome is not None and outcome.ok and outcome.shrunk == 1
    assert [(each.rank, each.length, each.max_batch, each.tested_fail) for each in after] == [
        *[(0, 32, 3, 4), (0, 64, 9, 10)],
        *[(1, 32, 10, None), (1, 64, 9, 10)],
    ]


class Replaying(Ranks):
    """Answers by a rule of how much memory each micro-batch takes; remembers what was asked."""

    def __init__(self, peak_mb: Callable[[int, int], float], limit_mb: float) -> None:
        super().__init__(None)
        self._peak_mb, self._limit_mb = peak_mb, limit_mb
        self.replays: list[int] = []

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[Reply]:
        shapes = [[(int(n), int(length)) for n, length in request["micro_batches"]] for request in requests]
        self.replays.append(sum(shape[0][0] for shape in shapes))
        return [self._answer(shape) for shape in shapes]

    def _answer(self, shapes: list[tuple[int, int]]) -> Reply:
        peaks = [self._peak_mb(n, length) for n, length in shapes]
        beyond = [shape for shape, peak in zip(shapes, peaks, strict=True) if peak > self._limit_mb]
        failure = {"n": beyond[0][0], "length": beyond[0][1]} if beyond else {}
        kept = {"peak_mem_mb": max(peaks), "reserved_mem_mb": max(peaks), "allocator_retries": None}
        return {"ok": not beyond, **kept, **failure}


LIMIT_MB = 200.0
MODEL = MemoryFit(
    fixed_mb=100.0,
    per_sample_mb=0.0,
    per_length_mb=0.0,
    per_token_mb=0.1,
    per_square_mb=0.0,
    mape=0.0,
    tokens_only_mape=0.0,
)


def replayed(global_batch: int, in_pieces: float) -> tuple[Replaying, Soak | None, list[CapacityRow]]:
    """A soak in which shapes take `in_pieces` times the memory of the trials."""
    ranks = Replaying(lambda n, length: 100.0 + in_pieces * 0.1 * n * length, LIMIT_MB)
    rows = [row(rank, length, most, most + 1) for rank in (0, 1) for length, most in ((32, 30), (64, 15))]
    problem = Problem(np.array([30] * 90 + [60] * 30), workers=2, global_batch=global_batch)
    outcome, after = soak(lambda: ranks, problem, rows, MODEL, 5, lambda _: None, LIMIT_MB)
    return ranks, outcome, after


@pytest.mark.parametrize("in_pieces", [1.2, 1.5, 2.0])
def test_capacities_are_lowered_by_as_much_as_the_peak_was_too_high(in_pieces: float) -> None:
    ranks, outcome, after = replayed(26, in_pieces)
    assert outcome is not None and outcome.ok
    assert outcome.peak_mem_mb is not None and outcome.peak_mem_mb <= LIMIT_MB
    assert len(ranks.replays) <= 5, "each replay takes as long as training so many steps"
    assert all(0.3 * before <= row.max_batch <= before for row, before in zip(after, (30, 15) * 2, strict=True))


def test_a_batch_that_the_capacities_cannot_hold_is_soaked_with_fewer_samples() -> None:
    ranks, outcome, after = replayed(48, 2.0)
    assert outcome is not None and outcome.ok
    assert outcome.global_batch is not None and outcome.global_batch < 48
    assert ranks.replays[-1] == outcome.global_batch
    capacity = Capacity.table([[(row.length, row.max_batch) for row in after if row.rank == rank] for rank in (0, 1)])
    problem = Problem(np.array([30] * 90 + [60] * 30), 2, outcome.global_batch, capacity=capacity)
    assert make_policy("partition", problem).misfit(5) is None
    assert replayed(20, 1.0)[1].global_batch == 20


def test_a_rank_refused_again_and_again_is_lowered_faster() -> None:
    class Refused(Replaying):
        def _answer(self, shapes: list[tuple[int, int]]) -> Reply:
            reply = super()._answer(shapes)
            return reply if reply and reply["ok"] else {**(reply or {}), "peak_mem_mb": 150.0}

    ranks = Refused(lambda n, length: 100.0 + 0.2 * n * length, LIMIT_MB)
    rows = [row(rank, length, most, most + 1) for rank in (0, 1) for length, most in ((32, 30), (64, 15))]
    problem = Problem(np.array([30] * 90 + [60] * 30), workers=2, global_batch=26)
    outcome, _ = soak(lambda: ranks, problem, rows, MODEL, 5, lambda _: None, LIMIT_MB)
    assert outcome is not None and outcome.ok and outcome.shrunk <= 4


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

    def ask_all(self, request: Mapping[str, object], *, collective: bool = False) -> list[dict[str, object]]:
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
    rows, trials = find_capacities(FakeRanks(fits).start, LENGTHS, 2, CEILING, Probe(), lambda text: None)
    return rows, capacity_tables(rows, fit_memory(trials), 2)


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


def limit_row(length: int, max_batch: int, tested_fail: int | None, rank: int = 0) -> dict[str, object]:
    tested = {"tested_ok": max_batch, "tested_fail": tested_fail, "peak_mem_mb": None}
    return {"rank": rank, "length": length, "max_batch": max_batch, **tested}


def written(folder: Path, **content: object) -> ProbeRecord:
    trials = [{"rank": 0, "length": 32, "n": 4, "fits": True, "peak_mem_mb": None}]
    (folder / "probe.json").write_text(json.dumps({**RECORD, "trials": trials, **content}))
    return read_probe(folder)


def test_a_record_of_the_first_version_is_read_without_its_ceilings(tmp_path: Path) -> None:
    capacity = [
        limit_row(32, 31, None),
        limit_row(64, 31, None),
        limit_row(128, 20, 24),
        limit_row(32, 9, 10, 1),
        limit_row(64, 9, None, 1),
    ]
    tables = [[(32, 31), (40, 31), (64, 31), (72, 28), (128, 20)], [(32, 9), (64, 9)]]
    old = written(tmp_path, schema_version=1, capacity=capacity, tables=tables)
    assert old.tables == [[(32, None), (40, None), (64, None), (72, 28), (128, 20)], tables[1]]
    new = written(tmp_path, schema_version=2, capacity=capacity, tables=tables)
    assert new.tables == tables

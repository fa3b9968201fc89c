"""Capacities: searched, tabulated, and lowered until the soak passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import Answer, FakeChildren, capacity_row, make_probe

from dynbench.config.schema import Probe
from dynbench.probe.capacity import CapacitySearch, capacity_tables, find_capacities, monotone, soak, with_margin
from dynbench.probe.fit import fit_memory
from dynbench.runs.probe_record import CapacityRow, MemoryFit, Soak, read_probe
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem, make_policy


def run(search: CapacitySearch, threshold: int) -> int:
    trials = 0
    while (n := search.next_trial()) is not None:
        assert search.next_trial() == n, "what was not recorded is asked again"
        search.record(n, n <= threshold)
        trials += 1
        assert trials < 100
    return trials


@given(
    threshold=st.integers(0, 5000), start=st.integers(1, 6000), ceiling=st.integers(1, 4000), gap=st.floats(0.001, 0.5)
)
def test_answer_is_within_the_gap_after_few_trials(threshold, start, ceiling, gap):
    search = CapacitySearch(start=start, ceiling=ceiling, gap=gap)
    assert run(search, threshold) <= 30 or gap < 0.05
    assert search.largest_ok <= min(threshold, ceiling)
    if threshold >= ceiling:
        assert (search.largest_ok, search.smallest_fail) == (ceiling, None)
    else:
        assert search.smallest_fail > threshold
        assert search.smallest_fail - search.largest_ok <= max(1, gap * search.largest_ok)


def test_later_failure_takes_success_back():
    search = CapacitySearch(start=4, gap=0.01)
    for n, fits in ((4, True), (8, True), (8, False)):
        search.record(n, fits)
    assert (search.largest_ok, search.smallest_fail) == (4, 8)
    run(search, 5)
    assert search.largest_ok == 5


@given(st.dictionaries(st.integers(1, 512), st.integers(0, 1000), min_size=1))
def test_monotone_repair_only_lowers(capacity):
    least = {length: min(most for each, most in capacity.items() if each <= length) for length in capacity}
    assert monotone(capacity) == least


def test_margin_leaves_one():
    assert [with_margin(*given) for given in ((100, 0.1), (1, 0.9), (0, 0.1))] == [90, 1, 0]


PASSED = {"ok": True, "peak_mem_mb": 1.0, "reserved_mem_mb": 1.0, "allocator_retries": None}
Reply = Callable[[int, Mapping[str, Any]], Answer]


def failing(beyond: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What is answered of shapes that do not fit: the first of them."""
    return {"ok": False, "n": beyond[0][0], "length": beyond[0][1]} if beyond else {}


def once(first: Answer) -> Reply:
    """Rank 0 answers so the first time; later all ranks pass."""
    left = [first]
    return lambda rank, _: left.pop() if left and rank == 0 else PASSED


def soaked(
    reply: Reply, shapes: Mapping[int, tuple[int, int | None]], global_batch: int, **given: Any
) -> tuple[FakeChildren, Soak | None, list[CapacityRow]]:
    """A soak of two ranks: by length, the largest micro-batch and what failed."""
    ranks = FakeChildren(reply)
    rows = [capacity_row(rank, length, *found) for rank in (0, 1) for length, found in shapes.items()]
    lengths = np.array([30 if "model" in given else 8] * 90 + [60] * (30 if "model" in given else 10))
    problem = Problem(lengths, workers=2, global_batch=global_batch, cost=CostModel("tokens"))
    outcome, after = soak(ranks, problem, rows, given.pop("model", None), 5, lambda _: None, **given)
    return ranks, outcome, after


@pytest.mark.parametrize("found_limit", [True, False])
@pytest.mark.parametrize(
    ("first", "left"), [(None, 1), (failing([(2, 8)]), 1), (failing([(1, 100)]), 1), (failing([(1, 60)]), 0)]
)
def test_one_sample_that_passed_its_trial_is_left_unless_it_failed_alone(first, left, found_limit):
    shapes = {length: (most, most + 1 if found_limit else None) for length, most in ((32, 4), (64, 1))}
    _, outcome, after = soaked(once(first), shapes, 3)
    capacities = {row.length: row.max_batch for row in after if row.rank == 0}
    assert not left or outcome.ok
    assert capacities[64] == left and 1 <= capacities[32] <= 4


def test_what_passed_alone_and_failed_in_the_soak_gets_the_margin_that_the_others_have():
    """Where no limit had been found: it had no margin, and it alone is lowered."""
    _, outcome, after = soaked(once(failing([(4, 30)])), {32: (10, None), 64: (9, 10)}, 8, margin=0.2)
    assert outcome.ok and outcome.shrunk == 1
    assert [(each.rank, each.length, each.max_batch, each.tested_fail) for each in after] == [
        *[(0, 32, 3, 4), (0, 64, 9, 10)],
        *[(1, 32, 10, None), (1, 64, 9, 10)],
    ]


LIMIT_MB = 200.0
NOTHING = dict.fromkeys(MemoryFit.model_fields, 0.0)
MODEL = MemoryFit(**NOTHING | {"fixed_mb": 100.0, "per_token_mb": 0.1})


def replayed(
    global_batch: int, in_pieces: float, told_mb: float | None = None
) -> tuple[FakeChildren, Soak | None, list[CapacityRow]]:
    """A soak in which shapes take `in_pieces` times the memory of the trials; a refusal may tell another peak."""

    def reply(_: int, request: Mapping[str, Any]) -> Answer:
        shapes = request["micro_batches"]
        peaks = [100.0 + in_pieces * 0.1 * n * length for n, length in shapes]
        failure = failing([shape for shape, peak in zip(shapes, peaks, strict=True) if peak > LIMIT_MB])
        return {**PASSED, "peak_mem_mb": told_mb if failure and told_mb else max(peaks), **failure}

    shapes = {32: (30, 31), 64: (15, 16)}
    return soaked(reply, shapes, global_batch, model=MODEL, limit_mb=LIMIT_MB)


@pytest.mark.parametrize("in_pieces", [1.2, 1.5, 2.0])
def test_capacities_are_lowered_by_as_much_as_the_peak_was_too_high(in_pieces):
    ranks, outcome, after = replayed(26, in_pieces)
    assert outcome.ok
    assert outcome.peak_mem_mb <= LIMIT_MB
    assert len(ranks.requests) <= 5, "each replay takes as long as training so many steps"
    assert all(0.3 * before <= row.max_batch <= before for row, before in zip(after, (30, 15) * 2, strict=True))


def test_a_batch_that_the_capacities_cannot_hold_is_soaked_with_fewer_samples():
    ranks, outcome, after = replayed(48, 2.0)
    assert outcome.ok
    assert outcome.global_batch < 48
    assert sum(request["micro_batches"][0][0] for request in ranks.requests[-1]) == outcome.global_batch
    capacity = Capacity.table([[(row.length, row.max_batch) for row in after if row.rank == rank] for rank in (0, 1)])
    problem = Problem(np.array([30] * 90 + [60] * 30), 2, outcome.global_batch, capacity=capacity)
    assert make_policy("partition", problem).misfit(5) is None
    assert replayed(20, 1.0)[1].global_batch == 20


def test_a_rank_refused_again_and_again_is_lowered_faster():
    _, outcome, _ = replayed(26, 2.0, told_mb=150.0)
    assert outcome.ok and outcome.shrunk <= 4


LENGTHS = (32, 64, 128)
CEILING = 31
Fits = Callable[[int, int, int], bool]
"""Whether n samples of a length fit on a rank."""


def answering(fits: Fits) -> FakeChildren:
    """Answers like trial processes, from a rule instead of memory."""

    def reply(rank: int, request: Mapping[str, Any]) -> Answer:
        if request["op"] == "trial":
            n, length = request["n"], request["length"]
            return {"fits": fits(rank, n, length), "peak_mem_mb": 100.0 + 0.1 * n * length}
        return PASSED | failing([shape for shape in request.get("micro_batches", ()) if not fits(rank, *shape)])

    return FakeChildren(reply)


def search(fits: Fits) -> tuple[list[CapacityRow], list[list[tuple[int, int | None]]]]:
    """Rows and tables of two ranks."""
    rows, trials = find_capacities(answering(fits), LENGTHS, 2, CEILING, Probe(), lambda text: None)
    return rows, capacity_tables(rows, fit_memory(trials), 2)


def within_tokens(*limits: int) -> Fits:
    return lambda rank, n, length: n * length <= limits[rank]


def test_a_search_that_never_failed_leaves_no_limit():
    rows, tables = search(lambda *_: True)
    assert {(row.max_batch, row.tested_ok, row.tested_fail) for row in rows} == {(CEILING, CEILING, None)}
    assert {most for table in tables for _, most in table} == {None}
    capacity = Capacity.table(tables)
    assert capacity.limit(1, 128) == UNLIMITED
    assert capacity.limit(1, 129) == 0, "nothing was tried there"


def test_limits_begin_where_something_failed_and_only_on_that_rank():
    _, (first, second) = search(within_tokens(10**6, 1300))
    assert {most for _, most in first} == {None}
    limits = dict(second)
    assert limits[32] is None
    assert limits[64] == 18 and limits[128] == 9, "what passed, less the margin"
    between = [limits[length] for length in range(40, 64, 8)]
    assert None not in between and between == sorted(between, reverse=True)
    assert min(between) >= 18


def test_what_the_memory_model_says_is_not_cut_to_the_largest_size_tried():
    limits = dict(search(within_tokens(3000, 3000))[1][0])
    assert limits[64] is None and limits[128] == 20
    assert limits[72] == 35, "20 x 128 tokens in as many of 72, though nothing above 31 was tried"


def test_a_failure_at_a_shorter_length_limits_the_longer_ones():
    rows, (table, _) = search(lambda rank, n, length: length != 32 or n <= 10)
    assert {row.length: row.tested_fail for row in rows if row.rank == 0} == {32: 11, 64: 11, 128: 11}
    assert {most for _, most in table} == {9}


@pytest.mark.parametrize("dies", [False, True])
def test_a_soak_that_fails_finds_the_limit(dies):
    rows, _ = search(lambda *_: True)
    problem = Problem(np.array([8] * 400 + [60] * 100), workers=2, global_batch=32, cost=CostModel("tokens"))
    ranks = FakeChildren(once(None)) if dies else answering(lambda rank, n, length: rank == 1 or length < 40 or n <= 5)
    outcome, after = soak(ranks, problem, rows, None, 5, lambda text: None)
    assert outcome.ok and outcome.shrunk >= 1
    (first, second) = (dict(table) for table in capacity_tables(after, None, 2))
    assert set(second.values()) == {None}
    assert first[64] < CEILING
    assert (first[32] is None) is not dies, "at lengths below the failed one nothing is known to fail"


def test_a_record_of_the_first_version_is_read_without_its_ceilings(tmp_path):
    found = [(0, 32, 31, None), (0, 64, 20, 24), (1, 32, 9, 10), (1, 64, 9, None)]
    tables, rows = [[(32, 31), (40, 28), (64, 20)], [(32, 9), (64, 9)]], [capacity_row(*each) for each in found]
    store = RunStore(tmp_path)
    new, old = (make_probe(store, capacity=rows, tables=tables, name=f"v{n}", schema_version=n) for n in (2, 1))
    assert read_probe(new.path).tables == tables
    assert read_probe(old.path).tables == [[(32, None), *tables[0][1:]], tables[1]]

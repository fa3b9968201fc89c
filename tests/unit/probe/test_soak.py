"""A soak that runs out of memory lowers what was found, but does not deny the one sample that fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from dynbench.probe.capacity import soak
from dynbench.runs.probe_record import CapacityRow, MemoryFit, Soak
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem, make_policy

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

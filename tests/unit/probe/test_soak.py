"""A soak that runs out of memory lowers what was found, but does not deny the one sample that fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from dynbench.probe.soak import soak
from dynbench.runs.probe_record import CapacityRow
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem

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
    problem = Problem(lengths, world_size=2, global_batch=3, cost=CostModel("tokens"))
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

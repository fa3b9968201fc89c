"""Capacity tables between probed lengths, and what they and a cost model predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.lengths import SST2
from dynbench.probe.capacity import capacity_tables
from dynbench.probe.fit import (
    BreakEven,
    GridPoint,
    at_full_speed,
    break_even_batch,
    fit_memory,
    grid,
    predicted_speedups,
    rank_speeds,
)
from dynbench.runs.probe_record import CapacityRow, TrialRow
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem


def row(length: int, max_batch: int, tested_fail: int | None = 1000, rank: int = 0) -> CapacityRow:
    return CapacityRow(
        rank=rank, length=length, max_batch=max_batch, tested_ok=max_batch, tested_fail=tested_fail, peak_mem_mb=None
    )


def trial(n: int, length: int) -> TrialRow:
    return TrialRow(rank=0, length=length, n=n, fits=True, peak_mem_mb=400 + 0.02 * n * length + 1e-5 * n * length**2)


@given(st.lists(st.integers(1, 300), min_size=3, max_size=3))
def test_tables_never_rise_and_keep_the_probed_lengths(capacities: list[int]) -> None:
    falling = sorted(capacities, reverse=True)
    rows = [row(length, n) for length, n in zip((32, 128, 256), falling, strict=True)]
    model = fit_memory([trial(n, length) for n in (1, 4, 16) for length in (32, 128, 256)])
    (table,) = capacity_tables(rows, model, 1)
    counts = [n for _, n in table]
    assert counts == sorted(counts, reverse=True)
    assert dict(table).items() >= {row.length: row.max_batch for row in rows}.items()
    assert [length for length, _ in table] == sorted({32, 128, 256} | set(range(40, 257, 8)))


def test_a_length_that_does_not_fit_is_not_in_the_table() -> None:
    (table,) = capacity_tables([row(32, 10), row(64, 0)], None, 1)
    assert max(length for length, _ in table) == 32


def test_grid_stays_within_the_smallest_capacity() -> None:
    rows = [row(32, 20), row(64, 5), row(32, 12, rank=1), row(64, 6, rank=1)]
    points = grid(rows, ceiling=100)
    assert [n for n, length in points if length == 32] == [1, 2, 4, 8, 12]
    assert [n for n, length in points if length == 64] == [1, 2, 4, 5]
    assert max(n for n, _ in grid([row(32, 20)], ceiling=7)) == 7


def test_relative_speeds_follow_the_times() -> None:
    measured = [GridPoint(1, 32, 10.0), GridPoint(2, 32, 20.0)]
    measured += [GridPoint(1, 32, 20.0, rank=1), GridPoint(2, 32, 40.0, rank=1)]
    assert rank_speeds(measured, 2, {}) == [1.0, 0.5]
    assert {point.ms for point in at_full_speed(measured, np.array([1.0, 0.5]))} == {
        point.ms for point in measured if point.rank == 0
    }
    assert at_full_speed(measured, None) == list(measured)


def problem(alpha: float, world_size: int = 4, samples: int = 4000) -> Problem:
    return Problem(
        lengths=SST2.sample(samples, np.random.default_rng(0)).astype(np.int64),
        workers=world_size,
        global_batch=8 * world_size,
        cost=CostModel("measured", alpha=alpha, beta=0.1, gamma=0.0),
    )


def test_launch_overhead_eats_the_predicted_gain() -> None:
    free = predicted_speedups(problem(0.0), 0.0)
    dear = predicted_speedups(problem(500.0), 0.0)
    assert free["partition"] is not None and dear["partition"] is not None
    assert free["partition"] > 1.8
    assert 1.0 < dear["partition"] < 1.2


def test_break_even_rises_with_the_overhead_until_nothing_pays() -> None:
    cheap = break_even_batch(problem(0.0), 0.0, worth=0.02)
    dear = break_even_batch(problem(300.0), 0.0, worth=0.02)
    assert cheap.batch is not None and dear.batch is not None
    assert cheap.batch < dear.batch
    same = replace(problem(0.0), lengths=np.full(4000, 20, dtype=np.int64))
    assert break_even_batch(same, 0.0, worth=0.02) == BreakEven(None, tuple(4 * 2**k for k in range(10)))


@pytest.mark.parametrize("world_size", [2, 3, 5, 6, 7, 8, 12, 24])
def test_break_even_is_a_batch_that_static_can_deal_at_any_number_of_ranks(world_size: int) -> None:
    found = break_even_batch(problem(0.0, world_size), 0.0, worth=0.02)
    assert found.batch is not None
    assert found.batch % world_size == 0 and found.batch == found.tried[-1]
    assert found.tried == tuple(world_size * 2**k for k in range(len(found.tried)))


@pytest.mark.parametrize(("samples", "tried"), [(5, ()), (6, (6,)), (100, (6, 12, 24, 48, 96))])
def test_break_even_is_looked_for_within_the_data(samples: int, tried: tuple[int, ...]) -> None:
    small = replace(problem(0.0, 6), lengths=np.full(samples, 20, dtype=np.int64))
    assert break_even_batch(small, 0.0, worth=0.02) == BreakEven(None, tried)

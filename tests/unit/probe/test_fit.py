"""Cost and memory models are fitted to timed steps, and what they predict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import capacity_row

from dynbench.lengths import SHIPPED
from dynbench.probe.capacity import capacity_tables
from dynbench.probe.fit import (
    GridPoint,
    accuracy,
    at_full_speed,
    between,
    break_even_batch,
    fit_measured,
    fit_memory,
    grid,
    judge,
    largest,
    nonnegative_least_squares,
    peak_mb,
    predicted_speedups,
    rank_speeds,
    split,
    table,
)
from dynbench.runs.probe_record import TrialRow
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Problem

GRID = [(n, length) for n in (1, 2, 4, 8, 16, 32) for length in (32, 64, 128, 256)]


def points(alpha: float, beta: float, gamma: float, noise: float = 0.0) -> list[GridPoint]:
    rng = np.random.default_rng(1)
    return [
        GridPoint(n, length, (alpha + beta * n * length + gamma * n * length**2) * (1 + noise * rng.standard_normal()))
        for n, length in GRID
    ]


@given(st.floats(0.1, 50), st.floats(1e-3, 0.1), st.floats(1e-6, 1e-4))
def test_planted_coefficients_are_found(alpha, beta, gamma):
    model = fit_measured(points(alpha, beta, gamma))
    assert (model.alpha, model.beta, model.gamma) == pytest.approx((alpha, beta, gamma), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_coefficients_of_any_scale_are_found_and_none_is_negative(scale):
    rng = np.random.default_rng(0)
    design = np.abs(rng.standard_normal((20, 3))) * [1.0, scale, scale**2]
    truth = np.array([2.0, 0.0, 3.0 / scale**2])
    found = nonnegative_least_squares(design, design @ truth, rng.random(20) + 0.1)
    assert found == pytest.approx(truth, rel=1e-6, abs=1e-9 / scale)
    below = nonnegative_least_squares(design, design @ [2.0, -1.0 / scale, 0.0], np.ones(20))
    assert (below >= 0).all()
    assert below[1] == 0


def test_table_is_exact_on_the_grid_and_grows_outside():
    measured = points(3.0, 0.01, 0.0)
    predict = table(measured)
    assert predict(*np.array(GRID).T) == pytest.approx([point.ms for point in measured])
    once, twice = predict(np.array([32, 64]), np.array([256, 256]))
    assert twice > once


def test_held_out_points_are_not_fitted():
    measured = points(3.0, 0.01, 1e-5)
    fitted, held_out = split(measured, seed=0)
    assert not set(fitted) & set(held_out)
    assert sorted((p.n, p.length) for p in fitted + held_out) == sorted(GRID)
    assert len(held_out) >= 4


def test_judge_prefers_the_true_shape_over_a_proxy():
    judged: Any = judge(points(20.0, 0.01, 0.0, noise=0.02), seed=0, attention_a=0.001)
    assert judged["measured"].mape < 0.1
    assert judged["tokens_sq"].mape > 3 * judged["measured"].mape
    assert set(judged) == {"tokens", "tokens_sq", "attention", "measured", "table"}


@pytest.mark.parametrize(
    ("predicted", "correlation"), [([1.0, 7.0, 7.0, 8.0], 1), ([1.0, 8.0, 7.0, 7.0], 0.5), ([8.0, 7.0, 7.0, 1.0], -1)]
)
def test_order_alone_is_judged_and_ties_share_their_place(predicted, correlation):
    measured = [GridPoint(n, 32, ms) for n, ms in ((1, 1.0), (2, 2.0), (3, 2.0), (4, 50.0))]
    found: Any = accuracy(lambda n, length: np.array(predicted), measured)
    assert found.rank_correlation == pytest.approx(correlation)
    assert accuracy(lambda n, length: np.full(4, 3.0), measured) is None


def trial(n: int, length: int, peak_mem_mb: float) -> TrialRow:
    return TrialRow(rank=0, n=n, length=length, fits=True, peak_mem_mb=peak_mem_mb)


def test_memory_model_and_the_lengths_between():
    trials = [trial(n, L, 500 + 0.02 * n * L + 1e-5 * n * L * L) for n, L in GRID]
    model = fit_memory(trials)
    assert model.mape < 1e-6 < model.tokens_only_mape
    limit = 700.0
    for length in (40, 100, 200):
        n = largest(model, length, limit)
        assert peak_mb(model, n, length) <= limit < peak_mb(model, n + 1, length)
    capacity = {32: 280, 64: 140, 128: 70}
    assert between(model, 64, limit, capacity) == 140
    assert 70 <= between(model, 100, limit, capacity) <= 140
    assert between(model, 100, 1.0, capacity) == 70, "a tested success is never given up for a prediction"
    assert between(model, 40, 1e9, capacity) == 280, "a tested failure is never exceeded"
    assert between(model, 300, limit, capacity) == 0


def test_too_few_points_give_no_model():
    assert fit_memory([trial(1, 32, 100.0)]) is None
    assert accuracy(lambda n, length: n * length * 1.0, [GridPoint(1, 32, 1.0)]) is None


@given(st.lists(st.integers(1, 300), min_size=3, max_size=3))
def test_tables_never_rise_and_keep_the_probed_lengths(capacities):
    falling = sorted(capacities, reverse=True)
    rows = [capacity_row(0, length, n) for length, n in zip((32, 128, 256), falling, strict=True)]
    model = fit_memory([trial(n, L, 400 + 0.02 * n * L + 1e-5 * n * L**2) for n in (1, 4, 16) for L in (32, 128, 256)])
    (table,) = capacity_tables(rows, model, 1)
    counts = [n for _, n in table]
    assert counts == sorted(counts, reverse=True)
    assert dict(table).items() >= {row.length: row.max_batch for row in rows}.items()
    assert [length for length, _ in table] == sorted({32, 128, 256} | set(range(40, 257, 8)))


def test_a_length_that_does_not_fit_is_not_in_the_table():
    (table,) = capacity_tables([capacity_row(0, 32, 10), capacity_row(0, 64, 0)], None, 1)
    assert max(length for length, _ in table) == 32


def test_grid_stays_within_the_smallest_capacity():
    rows = [capacity_row(0, 32, 20), capacity_row(0, 64, 5), capacity_row(1, 32, 12), capacity_row(1, 64, 6)]
    points = grid(rows, ceiling=100)
    assert [n for n, length in points if length == 32] == [1, 2, 4, 8, 12]
    assert [n for n, length in points if length == 64] == [1, 2, 4, 5]
    assert max(n for n, _ in grid([capacity_row(0, 32, 20)], ceiling=7)) == 7


def test_relative_speeds_follow_the_times():
    measured = [GridPoint(1, 32, 10.0), GridPoint(2, 32, 20.0)]
    measured += [GridPoint(1, 32, 20.0, rank=1), GridPoint(2, 32, 40.0, rank=1)]
    assert rank_speeds(measured, 2, {}) == [1.0, 0.5]
    assert {point.ms for point in at_full_speed(measured, np.array([1.0, 0.5]))} == {10.0, 20.0}
    assert at_full_speed(measured, None) == measured


def problem(alpha: float, world_size: int = 4) -> Problem:
    return Problem(
        lengths=np.random.default_rng(0).choice(SHIPPED["sst2"], 4000),
        workers=world_size,
        global_batch=8 * world_size,
        cost=CostModel("measured", alpha=alpha, beta=0.1, gamma=0.0),
    )


def test_launch_overhead_eats_the_predicted_gain():
    free, dear = (predicted_speedups(problem(overhead), 0.0)["partition"] for overhead in (0.0, 500.0))
    assert free > 1.8 and 1.0 < dear < 1.2


def test_break_even_rises_with_the_overhead():
    cheap, dear = (break_even_batch(problem(overhead), 0.0, worth=0.02)[0] for overhead in (0.0, 300.0))
    assert cheap < dear


@pytest.mark.parametrize("world_size", [2, 3, 7, 24])
def test_break_even_is_a_batch_that_static_can_deal_at_any_number_of_ranks(world_size):
    batch, tried = break_even_batch(problem(0.0, world_size), 0.0, worth=0.02)
    assert batch % world_size == 0 and batch == tried[-1]
    assert tried == tuple(world_size * 2**k for k in range(len(tried)))


@pytest.mark.parametrize(("samples", "tried"), [(5, ()), (6, (6,)), (100, (6, 12, 24, 48, 96))])
def test_break_even_is_looked_for_within_the_data_and_equal_lengths_have_none(samples, tried):
    small = replace(problem(0.0, 6), lengths=np.full(samples, 20, dtype=np.int64))
    assert break_even_batch(small, 0.0, worth=0.02) == (None, tried)

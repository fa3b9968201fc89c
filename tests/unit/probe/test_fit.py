"""Cost and memory fits against planted coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.probe.fit import (
    GridPoint,
    accuracy,
    between,
    fit_measured,
    fit_memory,
    judge,
    largest,
    nonnegative_least_squares,
    peak_mb,
    split,
    table,
)
from dynbench.runs.probe_record import TrialRow

GRID = [(n, length) for n in (1, 2, 4, 8, 16, 32) for length in (32, 64, 128, 256)]


def points(alpha: float, beta: float, gamma: float, noise: float = 0.0) -> list[GridPoint]:
    rng = np.random.default_rng(1)
    return [
        GridPoint(n, length, (alpha + beta * n * length + gamma * n * length**2) * (1 + noise * rng.standard_normal()))
        for n, length in GRID
    ]


@given(st.floats(0.1, 50), st.floats(1e-3, 0.1), st.floats(1e-6, 1e-4))
@settings(deadline=None)
def test_planted_coefficients_are_found(alpha: float, beta: float, gamma: float) -> None:
    model = fit_measured(points(alpha, beta, gamma))
    assert (model.alpha, model.beta, model.gamma) == pytest.approx((alpha, beta, gamma), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_coefficients_of_any_scale_are_found_and_none_is_negative(scale: float) -> None:
    rng = np.random.default_rng(0)
    design = np.abs(rng.standard_normal((20, 3))) * [1.0, scale, scale**2]
    truth = np.array([2.0, 0.0, 3.0 / scale**2])
    found = nonnegative_least_squares(design, design @ truth, rng.random(20) + 0.1)
    assert found == pytest.approx(truth, rel=1e-6, abs=1e-9 / scale)
    below = nonnegative_least_squares(design, design @ [2.0, -1.0 / scale, 0.0], np.ones(20))
    assert (below >= 0).all()
    assert below[1] == 0


def test_table_is_exact_on_the_grid_and_grows_outside() -> None:
    measured = points(3.0, 0.01, 0.0)
    predict = table(measured)
    n, length = np.array([p.n for p in measured]), np.array([p.length for p in measured])
    assert predict(n, length) == pytest.approx([p.ms for p in measured])
    assert predict(np.array([64]), np.array([256]))[0] > predict(np.array([32]), np.array([256]))[0]


def test_held_out_points_are_not_fitted() -> None:
    measured = points(3.0, 0.01, 1e-5)
    fitted, held_out = split(measured, seed=0)
    assert not set(fitted) & set(held_out)
    assert sorted((p.n, p.length) for p in fitted + held_out) == sorted(GRID)
    assert len(held_out) >= 4


def test_judge_prefers_the_true_shape_over_a_proxy() -> None:
    judged = judge(points(20.0, 0.01, 0.0, noise=0.02), seed=0, attention_a=0.001)
    assert judged["measured"] is not None
    assert judged["tokens_sq"] is not None
    assert judged["measured"].mape < 0.1
    assert judged["tokens_sq"].mape > 3 * judged["measured"].mape
    assert set(judged) == {"tokens", "tokens_sq", "attention", "measured", "table"}


def test_a_wrong_model_is_seen_to_be_wrong() -> None:
    bad = accuracy(lambda n, length: 1e3 / (n * length), points(1.0, 0.1, 0.0)[:10])
    assert bad is not None
    assert bad.rank_correlation < -0.9


def test_order_alone_is_judged_and_ties_share_their_place() -> None:
    measured = [GridPoint(n, 32, ms) for n, ms in ((1, 1.0), (2, 2.0), (3, 2.0), (4, 50.0))]
    right = accuracy(lambda n, length: np.array([1.0, 7.0, 7.0, 8.0]), measured)
    assert right is not None
    assert right.rank_correlation == pytest.approx(1.0)
    swapped = accuracy(lambda n, length: np.array([1.0, 8.0, 7.0, 7.0]), measured)
    assert swapped is not None
    assert swapped.rank_correlation == pytest.approx(0.5)
    assert accuracy(lambda n, length: np.full(4, 3.0), measured) is None


def trial(n: int, length: int, peak_mem_mb: float) -> TrialRow:
    return TrialRow(rank=0, n=n, length=length, fits=True, peak_mem_mb=peak_mem_mb)


def test_memory_model_and_the_lengths_between() -> None:
    trials = [trial(n, L, 500 + 0.02 * n * L + 1e-5 * n * L * L) for n, L in GRID]
    model = fit_memory(trials)
    assert model is not None
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


def test_too_few_points_give_no_model() -> None:
    assert fit_memory([trial(1, 32, 100.0)]) is None
    assert accuracy(lambda n, length: n * length * 1.0, [GridPoint(1, 32, 1.0)]) is None

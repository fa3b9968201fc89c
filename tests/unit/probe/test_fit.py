"""Cost and memory fits against planted coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.stats import spearmanr

from dynbench.probe.fit import (
    GridPoint,
    accuracy,
    fit_measured,
    judge,
    nonnegative_least_squares,
    ranks_of,
    split,
    table,
)
from dynbench.probe.memory_model import MemoryPoint, between, fit_memory

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


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(deadline=None)
def test_least_squares_agrees_with_scipy(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    design, target = rng.standard_normal((12, columns)), rng.standard_normal(12)
    ours = nonnegative_least_squares(design, target, np.ones(12))
    theirs, residual = nnls(design, target)
    assert np.linalg.norm(design @ ours - target) == pytest.approx(residual, rel=1e-7, abs=1e-9)
    assert ours == pytest.approx(theirs, abs=1e-6)


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


@given(st.lists(st.integers(0, 5), min_size=3, max_size=20))
def test_ranks_share_ties_like_scipy(values: list[int]) -> None:
    other = np.arange(len(values), dtype=float)
    if len(set(values)) > 1:
        ours = np.corrcoef(ranks_of(np.array(values, dtype=float)), ranks_of(other))[0, 1]
        assert ours == pytest.approx(spearmanr(values, other).statistic)


def test_memory_model_and_the_lengths_between() -> None:
    trials = [MemoryPoint(n, L, 500 + 0.02 * n * L + 1e-5 * n * L * L) for n, L in GRID]
    model = fit_memory(trials)
    assert model is not None
    assert model.mape < 1e-6 < model.tokens_only_mape
    limit = 700.0
    for length in (40, 100, 200):
        n = model.largest(length, limit)
        assert model.peak_mb(n, length) <= limit < model.peak_mb(n + 1, length)
    capacity = {32: 280, 64: 140, 128: 70}
    assert between(model, 64, limit, capacity) == 140
    assert 70 <= between(model, 100, limit, capacity) <= 140
    assert between(model, 100, 1.0, capacity) == 70, "a tested success is never given up for a prediction"
    assert between(model, 40, 1e9, capacity) == 280, "a tested failure is never exceeded"
    assert between(model, 300, limit, capacity) == 0


def test_too_few_points_give_no_model() -> None:
    assert fit_memory([MemoryPoint(1, 32, 100.0)]) is None
    assert accuracy(lambda n, length: n * length * 1.0, [GridPoint(1, 32, 1.0)]) is None

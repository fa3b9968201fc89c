"""Numbers at the edge of what they are defined for: no spread, no steps, no choice."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.pace import _effective, _p_value
from dynbench.analysis.steps import number_blocks
from dynbench.analysis.verdict import p_value
from dynbench.analysis.waste import ComputeFit, ComputeRows, fit_compute


def test_without_spread_a_difference_is_certain_and_none_is_none() -> None:
    assert (p_value(0.0, 0.0, 3.0), p_value(-0.1, 0.0, 3.0)) == (1.0, 0.0)
    assert (_p_value([0.0, 0.0]), _p_value([0.2, 0.2]), _p_value([-0.2, -0.2])) == (1.0, 0.0, 0.0)
    assert 0 < p_value(0.1, 0.1, 3.0) < 1
    assert 0 < _p_value([0.1, 0.3, 0.2]) < 1


def test_steps_that_follow_from_each_other_are_worth_fewer() -> None:
    assert _effective(np.array([])) == 0.0
    rng = np.random.default_rng(0)
    alone = rng.normal(size=400)
    assert _effective(np.repeat(alone[:100], 4)) < 0.5 * _effective(alone)


def test_a_turn_that_ends_ends_its_block() -> None:
    steps = pl.DataFrame({"step": [0, 1, 2, 3, 5], "warmup": [True, False, False, False, False]})
    assert number_blocks(steps)["block"].to_list() == [0, 1, 1, 1, 2]
    assert number_blocks(steps, restarts=[2])["block"].to_list() == [0, 1, 1, 2, 3]
    turns = steps.with_columns(turn=pl.Series([0, 0, 1, 1, 1]))
    assert number_blocks(turns)["block"].to_list() == [0, 1, 2, 2, 3]


def rows_of(tokens: list[float], ms: list[float], micro_batches: list[float]) -> ComputeRows:
    each = [np.array(values, dtype=np.float64) for values in (ms, micro_batches, tokens, tokens, tokens, tokens)]
    return ComputeRows(np.ones(1), np.ones(len(tokens)), *each)


def test_a_cost_is_fitted_only_where_rows_tell_its_parts_apart() -> None:
    fitted = fit_compute(rows_of([10, 20, 30], [12, 22, 32], [1, 1, 1]))
    assert fitted is not None
    assert (fitted.alpha, fitted.beta) == (pytest.approx(2), pytest.approx(1))
    assert fit_compute(rows_of([10, 10, 10], [12, 12, 12], [1, 1, 1])) is None, "all rows are alike"
    steep = fit_compute(rows_of([10, 20], [5, 25], [1, 1]))
    assert steep == ComputeFit(0.0, pytest.approx((50 + 500) / 500), 0.0), "nothing costs less than nothing"
    assert fit_compute(rows_of([10, 20], [30, 10], [1, 1])) is None, "nor does more work"

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from dynbench.analysis.stats import (
    coefficient_of_variation,
    paired_ratio,
    relative_drift,
    robust_z,
    student_t_quantile,
)


def test_t_quantiles_from_the_printed_tables():
    assert student_t_quantile(0.975, 3) == pytest.approx(3.182446, abs=1e-6)
    assert student_t_quantile(0.975, 7) == pytest.approx(2.364624, abs=1e-6)
    assert student_t_quantile(0.5, 4) == 0


@pytest.mark.parametrize("p", [0, 1, -0.1, 1.5])
def test_quantile_outside_the_open_interval_is_refused(p):
    with pytest.raises(ValueError, match="no quantile"):
        student_t_quantile(p, 3)


def test_paired_ratio_equals_scipys_interval():
    a, b = [10.0, 11.0, 10.5, 12.0], [8.0, 8.2, 8.4, 8.9]
    ratio = paired_ratio(a, b)
    logs = np.log(a) - np.log(b)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert ratio.estimate == pytest.approx(math.exp(logs.mean()))
    assert (ratio.low, ratio.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert ratio.half_width == pytest.approx((high - low) / 2)


def test_one_pair_is_an_estimate_without_interval():
    ratio = paired_ratio([2.0], [1.0])
    assert (ratio.estimate, ratio.low, ratio.high, ratio.half_width, ratio.pairs) == (2.0, None, None, None, 1)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([math.nan], [1.0])])
def test_totals_that_cannot_be_paired_are_refused(a, b):
    with pytest.raises(ValueError):
        paired_ratio(a, b)


def sessions(rng, launches, order, *, speedup=1.05, steps=200, sessions=2000):
    """Totals of two arms under launch effects, correlated step noise, work per batch and drift over the session.

    Launch sd 1 %, step noise 5 % AR(1) with rho 0.6, batch work sd 30 % (shared by the arms), drift 3 %.
    Shape of the result: two arrays [sessions, launches].
    """
    arms = [arm for block in range(launches) for arm in order(block)]
    noise = rng.standard_normal((sessions, len(arms), steps))
    noise = 0.05 * lfilter([math.sqrt(1 - 0.6**2)], [1, -0.6], noise, axis=-1)
    work = rng.lognormal(0, 0.3, (sessions, 1, steps))
    drift = 1 + 0.03 * np.arange(len(arms) * steps).reshape(len(arms), steps) / (len(arms) * steps)
    launch = 1 + 0.01 * rng.standard_normal((sessions, len(arms)))
    totals = (work * (1 + noise) * drift).sum(axis=-1) * launch
    first = np.array([arm == "A" for arm in arms])
    return totals[:, first] * speedup, totals[:, ~first]


def abba(block):
    return "AB" if block % 2 == 0 else "BA"


def coverage(launches, order, seed=3):
    """Share of simulated comparisons whose interval holds the true speed-up."""
    pairs = zip(*sessions(np.random.default_rng(seed), launches, order), strict=True)
    ratios = [paired_ratio(list(a), list(b)) for a, b in pairs]
    return np.mean([ratio.low <= 1.05 <= ratio.high for ratio in ratios])


@pytest.mark.slow
@pytest.mark.parametrize("launches", [4, 8])
def test_the_interval_covers_the_truth_as_often_as_it_says(launches):
    share = coverage(launches, abba)
    print(f"{launches} launches per arm: covered in {100 * share:.1f} % of 2,000 comparisons")
    assert 0.93 <= share <= 0.97


@pytest.mark.slow
def test_blocked_order_would_not_cover():
    """The same drift with all of one arm first: what pairing in ABBA order is for."""
    pairs = zip(*sessions(np.random.default_rng(3), 8, abba), strict=True)
    assert np.mean([paired_ratio(list(a), list(b)).estimate for a, b in pairs]) == pytest.approx(1.05, abs=0.001)
    half = iter("A" * 8 + "B" * 8)
    blocked = [next(half) + next(half) for _ in range(8)]
    assert coverage(8, lambda block: blocked[block]) < 0.9


def test_coefficient_of_variation():
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)


def test_robust_z_counts_in_standard_deviations():
    others = np.random.default_rng(0).normal(100, 5, 100_000)
    assert robust_z(120, others) == pytest.approx(4, rel=0.02)
    assert robust_z(3, [3.0, 3.0]) == 0
    assert robust_z(4, [3.0, 3.0]) == math.inf


def test_drift_is_found_through_outliers():
    values = np.linspace(100, 120, 400)
    values[::50] *= 10
    assert relative_drift(values) == pytest.approx(0.18, abs=0.04)
    assert relative_drift(np.full(50, 3.0)) == 0
    assert relative_drift([5.0]) == 0

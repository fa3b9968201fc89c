"""The statistics of comparisons: intervals, two stages, and power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dynbench.analysis.stats import (
    MOST_LAUNCHES,
    Ratio,
    coefficient_of_variation,
    growth_p_value,
    later_spread,
    launches_needed,
    mean_interval,
    pair_spread,
    paired_ratio,
    plan_launches,
    reach,
    relative_drift,
    robust_z,
    smallest_shown,
    student_t_quantile,
    theil_sen,
    without_outliers,
)
from dynbench.config.recipes import Launches


@pytest.mark.parametrize(("p", "df"), [(0.975, 3), (0.975, 7), (0.5, 4), (0.75, 1), (0.975, 0.5)])
def test_t_quantiles_are_scipys(p, df):
    assert student_t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), abs=1e-12)


@pytest.mark.parametrize(("p", "df"), [(0, 3), (1, 3), (-0.1, 3), (1.5, 3), (0.5, 0), (0.5, -1), (0.5, math.nan)])
def test_quantile_outside_the_open_interval_is_refused(p, df):
    with pytest.raises(ValueError, match=f"^no quantile for p={p}, df={df}$"):
        student_t_quantile(p, df)


PAIRS = [10.0, 11.0, 10.5, 12.0], [8.0, 8.2, 8.4, 8.9]
LOGS = np.log(PAIRS[0]) - np.log(PAIRS[1])


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("first", [None, 2, 3, 4, 9])
def test_the_first_stages_spread_is_kept_for_all_pairs(first, confidence):
    """Of 4 pairs in one stage, or of which the first ones are; its interval is that of a t test."""
    ratio = paired_ratio(*PAIRS, confidence, first)
    kept = LOGS[:first]
    error = kept.std(ddof=1) / 2
    low, high = stats.t.interval(confidence, len(kept) - 1, loc=LOGS.mean(), scale=error)
    assert (ratio.estimate, ratio.pairs, ratio.first) == (pytest.approx(math.exp(LOGS.mean())), 4, first)
    assert (ratio.low, ratio.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert (ratio.half_width, ratio.df) == (pytest.approx((high - low) / 2), len(kept) - 1)
    assert pair_spread(ratio, confidence) == pytest.approx(kept.std(ddof=1))


def test_one_pair_is_an_estimate_without_interval_or_spread():
    ratio = paired_ratio([2.0], [1.0], first=4)
    assert (ratio.estimate, ratio.low, ratio.high, ratio.half_width, ratio.pairs) == (2.0, None, None, None, 1)
    assert (ratio.first, pair_spread(ratio, 0.95)) == (4, None)
    assert paired_ratio(*PAIRS) == paired_ratio(*PAIRS, 0.95)


def test_noise_of_equal_arms_is_the_interval_or_what_they_came_out_apart():
    assert Ratio(1.0, 0.9, 1 / 0.9, 4).noise == pytest.approx(1 / 0.9 - 1)
    assert Ratio(0.5, 0.49, 0.51, 4).noise == pytest.approx(1) == Ratio(2.0, 1.9, 2.1, 4).noise
    assert Ratio(1.01, None, None, 1).noise == pytest.approx(0.01)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_totals_that_cannot_be_paired_are_refused(wrong):
    for a, b in (([wrong], [1.0]), ([1.0, 1.0], [1.0, wrong])):
        with pytest.raises(ValueError, match=r"^totals must be positive and finite$"):
            paired_ratio(a, b)
    for a, b in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match=f"^pairs need as many totals on both sides, not {len(a)} and {len(b)}$"):
            paired_ratio(a, b)


@pytest.mark.parametrize("first", [-1, 0, 1])
def test_a_first_stage_without_a_spread_is_refused(first):
    with pytest.raises(ValueError, match=f"^a first stage of {first} launches has no spread$"):
        paired_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], first=first)


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


@pytest.mark.parametrize("size", [2, 3, 200, 400, 1000])
def test_drift_of_a_line_is_its_rise_over_the_median(size):
    values = np.linspace(90, 110, size)
    blocks = [block.mean() for block in np.array_split(values, min(size, 200))]
    assert relative_drift(values) == pytest.approx((blocks[-1] - blocks[0]) / 100, rel=1e-9)
    assert relative_drift(values[::-1]) == -relative_drift(values)


def test_what_lies_three_deviations_out_counts_as_if_it_were_there():
    """Of 0 … 10 the median is 5 and the median deviation 3."""
    bound = 3 * 1.4826 * 3
    found = without_outliers([*range(11), -90.0, 100.0])
    assert list(found) == pytest.approx([*range(11), 5 - bound, 5 + bound])


def test_the_theil_sen_slope_is_scipys():
    x, y = np.random.default_rng(0).normal(0, 1, (2, 40)).round(1)
    assert theil_sen(x, y) == pytest.approx(stats.theilslopes(y, x).slope)
    assert theil_sen(np.ones(5), np.arange(5.0)) == 0


def test_the_test_of_growth_is_that_of_the_place_in_a_regression_on_both():
    """A covariate costs one degree of freedom, and takes its own change with the place with it."""
    rng = np.random.default_rng(2)
    place, tokens = np.arange(25.0), rng.uniform(1, 2, 25)
    values = 0.02 * place + rng.uniform(0, 1, 25)
    assert growth_p_value(values, np.ones(25)) == pytest.approx(stats.linregress(place, values).pvalue / 2)
    assert growth_p_value(-values, np.ones(25)) == pytest.approx(1 - growth_p_value(values, np.ones(25)))
    design = np.stack([np.ones(25), tokens, place], axis=1)
    free = values - design[:, :2] @ np.linalg.lstsq(design[:, :2], values, rcond=None)[0]
    fit, (left,), *_ = np.linalg.lstsq(design, free, rcond=None)
    error = math.sqrt(left / 22 * np.linalg.inv(design.T @ design)[2, 2])
    assert growth_p_value(free, tokens) == pytest.approx(stats.t.sf(fit[2] / error, 22))


def test_the_test_of_growth_knows_nothing_of_equal_values_and_all_of_a_line():
    assert growth_p_value(np.ones(20), np.arange(20)) == 0.5
    assert growth_p_value(np.arange(20.0), np.arange(20)) == 0.5, "all of the line is the covariate's"
    assert growth_p_value(np.arange(20.0), np.ones(20)) < 1e-12
    outlier = np.random.default_rng(1).normal(10, 1, 40)
    outlier[-1] = 1e4
    assert growth_p_value(outlier, np.ones(40)) > 0.05


def test_interval_of_a_mean_is_scipys():
    values = [3.0, 4.0, 4.5, 7.0, 7.5]
    for level in (0.95, 0.5):
        mean, *ends = mean_interval(values, level)
        assert mean == pytest.approx(5.2)
        assert ends == pytest.approx(stats.t.interval(level, 4, loc=5.2, scale=stats.sem(values)))
    assert mean_interval(values) == mean_interval(values, 0.95)


FIRST_STAGE = Launches.model_fields["first"].default
WANTED = 0.03
MOST = 500


def planned(logs, **limits):
    """The rule on simulated comparisons, shape [sessions, launches]: launches made, and whether the truth, 0, is held.

    The quantile and the formula are written out again; that the code's are the same, another test says.
    """
    quantile = stats.t.ppf(0.975, FIRST_STAGE - 1)
    spread = logs[:, :FIRST_STAGE].std(axis=1, ddof=1)
    made = np.ceil((quantile * spread / math.log1p(WANTED)) ** 2).astype(int).clip(FIRST_STAGE, logs.shape[1])
    means = np.cumsum(logs, axis=1)[np.arange(len(logs)), made - 1] / made
    return made, np.abs(means) <= quantile * spread / np.sqrt(made)


@pytest.mark.parametrize("spread", [0.01, 0.04, 0.08, 0.12])
def test_the_rule_and_the_interval_are_those_that_are_simulated(spread):
    logs = np.random.default_rng(2).normal(0, spread, (20, MOST))
    made, held = planned(logs)
    for row, launches, holds in zip(logs, made, held, strict=True):
        plan = plan_launches([row[:FIRST_STAGE].tolist()], WANTED)
        assert (plan.first, plan.needed, plan.launches) == (8, launches, launches)
        ratio = paired_ratio(np.exp(row[:launches]), np.ones(launches), first=FIRST_STAGE)
        assert (ratio.low <= 1 <= ratio.high) == holds
        assert ratio.half_width == pytest.approx(math.log1p(plan.half_width))
        assert plan.half_width <= WANTED * (1 + 1e-9)
        assert (ratio.pairs, ratio.df) == (launches, 7)


def test_the_candidate_that_spreads_most_decides():
    quiet, loud = [0.01, -0.01] * 4, [0.08, -0.08] * 4
    assert plan_launches([quiet], WANTED).launches == 8
    assert plan_launches([quiet, loud], WANTED) == plan_launches([loud, quiet], WANTED) == plan_launches([loud], WANTED)
    assert plan_launches([loud], WANTED).launches > 8


def test_higher_confidence_and_narrower_intervals_take_more_launches():
    logs = [[0.05, -0.05] * 4]
    counts = [plan_launches(logs, *wanted).needed for wanted in [(0.05,), (0.03,), (0.03, 0.99)]]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("limits", "launches"),
    [({"most_launches": 20}, 20), ({"most_s": 300, "launch_s": 20}, 15), ({"most_launches": 4}, 8), ({}, 47)],
)
def test_limits_say_the_width_that_they_cost(limits, launches):
    logs = [0.08, -0.08] * 4
    plan = plan_launches([logs], WANTED, **limits)
    assert (plan.launches, plan.needed) == (launches, 47)
    half = stats.t.ppf(0.975, 7) * np.std(logs, ddof=1) / math.sqrt(launches)
    assert plan.half_width == pytest.approx(math.expm1(half))
    assert (plan.half_width > WANTED) == (launches < 47)


@pytest.mark.parametrize(
    ("logs", "half_width", "limits"),
    [
        ([], 0.03, {}),
        ([[0.1]], 0.03, {}),
        ([[0.1, 0.2], [0.1, 0.2, 0.3]], 0.03, {}),
        ([[0.1, 0.2]], 0.0, {}),
        ([[0.1, 0.2]], 0.03, {"most_s": 60}),
    ],
)
def test_what_no_plan_can_be_made_of_is_refused(logs, half_width, limits):
    with pytest.raises(ValueError, match=r"first stage|half-width"):
        plan_launches(logs, half_width, **limits)


def test_a_later_spread_that_is_larger_contradicts():
    rng = np.random.default_rng(3)
    first, later = rng.normal(0, 0.01, 8), rng.normal(0, 0.05, 8)
    found = later_spread([*first, *later], 8)
    assert found.contradicts
    assert found.later == pytest.approx(later.std(ddof=1))
    assert found.p == pytest.approx(stats.f.sf((found.later / found.first) ** 2, 7, 7))
    assert not later_spread([*later, *first], 8).contradicts
    assert later_spread([*first, *later[:1]], 8) is None
    assert later_spread(first, 8) is later_spread(first, 1) is None
    assert later_spread([0.0] * 10, 8).p == 1
    assert later_spread([0.0] * 8 + [0.1, 0.2], 8).contradicts, "of equal first launches"


def test_launches_of_one_spread_hardly_ever_contradict():
    logs = np.random.default_rng(4).normal(0, 0.12, (1000, MOST))
    made, _ = planned(logs)
    told = [later_spread(row[:launches], FIRST_STAGE) for row, launches in zip(logs, made, strict=True)]
    assert np.mean([found is not None and found.contradicts for found in told]) <= 0.015


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("pairs", [2, 4, 6, 8, 16, 50, 400])
def test_the_power_is_that_of_the_noncentral_t_distribution(pairs, confidence):
    for df in (pairs - 1, 3, 2.5 * pairs):
        noncentrality = smallest_shown(0.08, pairs, confidence, df) / 0.08 * math.sqrt(pairs)
        limit = stats.t.ppf(0.5 + confidence / 2, df)
        assert 1 - stats.nct.cdf(limit, df, noncentrality) == pytest.approx(0.9, abs=1e-3)
    assert smallest_shown(0.08, pairs) == smallest_shown(0.08, pairs, 0.95, pairs - 1)
    assert reach(pairs, confidence, 3) == pytest.approx(stats.t.ppf(0.5 + confidence / 2, 3) / math.sqrt(pairs))


@pytest.mark.slow
@given(difference=st.floats(0.005, 1.0), spread=st.floats(1e-4, 1.0))
@example(difference=smallest_shown(1.0, MOST_LAUNCHES), spread=1.0)
def test_launches_needed_are_even_and_the_fewest(difference, spread):
    launches = launches_needed(difference, spread)
    if launches is None:
        assert smallest_shown(spread, MOST_LAUNCHES) > difference
        return
    assert launches % 2 == 0
    assert smallest_shown(spread, launches) <= difference
    assert launches == 2 or smallest_shown(spread, launches - 2) > difference


@given(logs=st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_spread_is_read_back_from_the_interval(logs, confidence):
    ratio = paired_ratio([math.exp(log) for log in logs], [1.0] * len(logs), confidence)
    assert pair_spread(ratio, confidence) == pytest.approx(np.std(logs, ddof=1), rel=1e-6, abs=1e-9)

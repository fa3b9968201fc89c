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


@pytest.mark.parametrize(("p", "df"), [(0, 3), (1, 3), (0.5, 0), (0.5, math.nan)])
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
    spread = kept.std(ddof=1)
    low, high = stats.t.interval(confidence, len(kept) - 1, loc=LOGS.mean(), scale=spread / 2)
    assert ratio == (*(pytest.approx(math.exp(log)) for log in (LOGS.mean(), low, high)), 4, first)
    assert (ratio.half_width, ratio.df) == (pytest.approx((high - low) / 2), len(kept) - 1)
    assert pair_spread(ratio, confidence) == pytest.approx(spread)


def test_one_pair_is_an_estimate_without_interval_or_spread():
    ratio = paired_ratio([2.0], [1.0], first=4)
    assert ratio == (2.0, None, None, 1, 4) and ratio.half_width is pair_spread(ratio, 0.95) is None
    assert paired_ratio(*PAIRS) == paired_ratio(*PAIRS, 0.95)


def test_noise_of_equal_arms_is_the_interval_or_what_they_came_out_apart():
    assert Ratio(1.0, 0.9, 1 / 0.9, 4).noise == pytest.approx(1 / 0.9 - 1)
    assert Ratio(0.5, 0.49, 0.51, 4).noise == pytest.approx(1) == Ratio(2.0, 1.9, 2.1, 4).noise
    assert Ratio(1.01, None, None, 1).noise == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("one", "other", "first", "said"),
    [
        *(([wrong], [1.0], None, r"totals must be positive and finite") for wrong in (0.0, -1.0, math.nan, math.inf)),
        *(([1.0, 1.0], [1.0, wrong], None, r"totals must be positive and finite") for wrong in (0.0, -1.0, math.inf)),
        ([], [], None, "pairs need as many totals on both sides, not 0 and 0"),
        ([1.0], [1.0, 2.0], None, "pairs need as many totals on both sides, not 1 and 2"),
        *(([1.0, 2.0], [1.0, 1.0], first, f"a first stage of {first} launches has no spread") for first in (-1, 0, 1)),
    ],
)
def test_totals_that_cannot_be_paired_are_refused(one, other, first, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        paired_ratio(one, other, first=first)


def test_coefficient_of_variation():
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)


def test_robust_z_counts_in_standard_deviations():
    others = np.random.default_rng(0).normal(100, 5, 100_000)
    assert robust_z(120, others) == pytest.approx(4, rel=0.02)
    assert robust_z(3, [3.0, 3.0]) == 0
    assert robust_z(4, [3.0, 3.0]) == -robust_z(2, [3.0, 3.0]) == math.inf


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


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, math.inf),
        ({"launch_s": 20}, math.inf),
        ({"most_launches": 4}, 4),
        ({"most_launches": 20, "most_s": 31.5, "launch_s": 2}, 15),
    ],
)
@pytest.mark.parametrize("first", [2, 8])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_candidate_that_spreads_most_decides_and_limits_say_the_width_that_they_cost(
    first, confidence, limits, most
):
    logs = np.random.default_rng(first).normal(0, 0.08, (3, first))
    reached = stats.t.ppf(0.5 + confidence / 2, first - 1) * logs.std(axis=1, ddof=1).max()
    needed = math.ceil((reached / math.log1p(WANTED)) ** 2)
    made = max(first, min(needed, most))
    plan = plan_launches(logs.tolist(), WANTED, confidence, **limits)
    assert needed > 20 and plan == (first, needed, made, pytest.approx(math.expm1(reached / math.sqrt(made))))


@pytest.mark.parametrize(
    ("logs", "half_width", "limits", "said"),
    [
        ([], 0.03, {}, "two or more, not 0$"),
        ([[0.1]], 0.03, {}, r"two or more, not \{1\}$"),
        ([[0.1, 0.2], [0.1, 0.2, 0.3]], 0.03, {}, r"not \{2, 3\}$"),
        ([[0.1, 0.2]], 0.0, {}, "a half-width of 0.0 at None s each"),
        ([[0.1, 0.2]], 0.03, {"most_s": 60}, "at None s each"),
        ([[0.1, 0.2]], 0.03, {"most_s": 60, "launch_s": 0}, "at 0 s each"),
    ],
)
def test_what_no_plan_can_be_made_of_is_refused(logs, half_width, limits, said):
    with pytest.raises(ValueError, match=said):
        plan_launches(logs, half_width, **limits)


@pytest.mark.parametrize(("first", "times"), [(8, 5), (2, 50), (8, 0.2)])
def test_a_later_spread_that_is_larger_contradicts(first, times):
    logs = np.random.default_rng(3).normal(0, 0.01, 16)
    logs[first:] *= times
    before, after = logs[:first].std(ddof=1), logs[first:].std(ddof=1)
    found, p = later_spread(logs.tolist(), first), stats.f.sf((after / before) ** 2, 15 - first, first - 1)
    assert found == pytest.approx((before, after, p)) and found.contradicts == (p < 0.01)


def test_a_later_spread_is_known_of_two_launches_and_beside_equal_ones():
    assert later_spread([0.1, 0.2, 0.4], 2) is later_spread([0.1, 0.2], 2) is later_spread([0.1, 0.2, 0.4], 1) is None
    assert later_spread([0.0] * 10, 8) == (0, 0, 1)
    assert later_spread([0.0] * 8 + [0.1, 0.2], 8) == (0, pytest.approx(0.05 * math.sqrt(2)), 0)


@pytest.mark.parametrize("spread", [0.01, 0.08])
def test_intervals_of_two_stages_cover_the_truth_and_launches_of_one_spread_hardly_ever_contradict(spread):
    held, told = [], []
    for logs in np.random.default_rng(4).normal(0, spread, (1000, 500)):
        plan = plan_launches([logs[:FIRST_STAGE].tolist()], WANTED)
        made = logs[: plan.launches]
        ratio = paired_ratio(np.exp(made), np.ones(len(made)), first=FIRST_STAGE)
        assert ratio.pairs == plan.needed == plan.launches and plan.first == ratio.df + 1 == FIRST_STAGE
        assert ratio.half_width == pytest.approx(math.log1p(plan.half_width)) and plan.half_width < WANTED + 1e-9
        held.append(ratio.low <= 1 <= ratio.high)
        later = later_spread(made.tolist(), FIRST_STAGE)
        told.append(later is not None and later.contradicts)
    assert abs(np.mean(held) - 0.95) <= 2 * math.sqrt(0.95 * 0.05 / 1000) and np.mean(told) <= 0.015


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
@given(difference=st.floats(0.005, 1.0), spread=st.floats(1e-4, 1.0), per_launch=st.sampled_from([1.0, 2.5]))
@example(difference=smallest_shown(1.0, MOST_LAUNCHES), spread=1.0, per_launch=1.0)
@example(difference=smallest_shown(1.0, MOST_LAUNCHES + 2), spread=1.0, per_launch=1.0)
def test_launches_needed_are_even_and_the_fewest(difference, spread, per_launch):
    def shown(launches):
        return smallest_shown(spread, launches, 0.95, per_launch * (launches - 1))

    launches = launches_needed(difference, spread, 0.95, per_launch)
    if launches is None:
        assert shown(MOST_LAUNCHES) > difference
        return
    assert launches in range(2, MOST_LAUNCHES + 1, 2)
    assert shown(launches) <= difference
    assert launches == 2 or shown(launches - 2) > difference

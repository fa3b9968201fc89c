"""Stein's rule by known answers and by simulation: coverage is to be what the interval says, whatever the spread."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from dynbench.analysis.stats import later_spread, paired_ratio, plan_launches
from dynbench.config.launches import Launches

FIRST_STAGE = Launches.model_fields["first"].default
SESSIONS = 4000
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
        assert (plan.first, plan.needed, plan.launches, plan.more) == (8, launches, launches, launches - 8)
        ratio = paired_ratio(np.exp(row[:launches]), np.ones(launches), first=FIRST_STAGE)
        assert (ratio.low <= 1 <= ratio.high) == holds
        assert ratio.half_width == pytest.approx(math.log1p(plan.half_width))
        assert plan.half_width <= WANTED * (1 + 1e-9)
        assert (ratio.pairs, ratio.df) == (launches, 7)


@pytest.mark.parametrize(
    ("spread", "fewest", "most"),
    [(0.005, 8, 8), (0.03, 8, 9), (0.05, 12, 20), (0.08, 35, 45), (0.12, 85, 100)],
)
def test_two_stages_cover_the_truth_as_often_as_they_say(spread, fewest, most):
    made, held = planned(np.random.default_rng(1).normal(0, spread, (SESSIONS, MOST)))
    assert fewest <= made.mean() <= most
    assert 0.93 <= held.mean() <= 0.97


def test_the_ratio_of_two_candidates_is_covered_too():
    """Their launches were counted from the ratios against the baseline; so any arm may be made the baseline later."""
    times = np.random.default_rng(6).normal(0, 0.05, (SESSIONS, MOST, 3))
    made = np.max([planned(times[..., arm] - times[..., 0])[0] for arm in (1, 2)], axis=0)
    ratios = times[..., 1] - times[..., 2]
    means = np.cumsum(ratios, axis=1)[np.arange(SESSIONS), made - 1] / made
    halves = stats.t.ppf(0.975, FIRST_STAGE - 1) * ratios[:, :FIRST_STAGE].std(axis=1, ddof=1) / np.sqrt(made)
    assert 0.93 <= np.mean(np.abs(means) <= halves) <= 0.97


@pytest.mark.parametrize("spread", [0.08, 0.12])
def test_correlated_launches_lose_the_coverage_that_is_documented(spread):
    noise = np.random.default_rng(1).standard_normal((SESSIONS, MOST + 50))
    logs = spread * lfilter([math.sqrt(1 - 0.3**2)], [1, -0.3], noise, axis=1)[:, 50:]
    made, held = planned(logs)
    assert 0.84 <= held.mean() <= 0.89
    fixed = logs[:, : int(np.median(made))]
    assert np.mean(stats.ttest_1samp(fixed, 0, axis=1).pvalue > 0.05) == pytest.approx(held.mean(), abs=0.02)


def test_stopping_when_the_interval_is_narrow_enough_would_not_cover():
    """The mistake that the rule avoids: the spread of all launches so far, looked at after each."""
    logs = np.random.default_rng(5).normal(0, 0.05, (SESSIONS, MOST))
    count = np.arange(1, MOST + 1)
    means = np.cumsum(logs, axis=1) / count
    spread = np.sqrt((np.cumsum(logs**2, axis=1) - count * means**2).clip(0) / np.maximum(count - 1, 1))
    halves = stats.t.ppf(0.975, np.maximum(count - 1, 1)) * spread / np.sqrt(count)
    stops = (halves[:, 2:] <= math.log1p(WANTED)).argmax(axis=1) + 2
    rows = np.arange(SESSIONS)
    assert np.mean(np.abs(means[rows, stops]) <= halves[rows, stops]) < 0.92


def test_the_candidate_that_spreads_most_decides():
    quiet, loud = [0.01, -0.01] * 4, [0.08, -0.08] * 4
    assert plan_launches([quiet], WANTED).more == 0
    assert plan_launches([quiet, loud], WANTED) == plan_launches([loud, quiet], WANTED) == plan_launches([loud], WANTED)
    assert plan_launches([loud], WANTED).more > 0


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
    assert later_spread(first, 8) is None


def test_launches_of_one_spread_hardly_ever_contradict():
    logs = np.random.default_rng(4).normal(0, 0.12, (1000, MOST))
    made, _ = planned(logs)
    told = [later_spread(row[:launches], FIRST_STAGE) for row, launches in zip(logs, made, strict=True)]
    assert np.mean([found is not None and found.contradicts for found in told]) <= 0.015


def test_equal_first_launches_are_contradicted_by_any_later_spread():
    assert later_spread([0.0] * 10, 8).p == 1
    assert later_spread([0.0] * 8 + [0.1, 0.2], 8).contradicts

"""Verdicts that hold jointly: false ones and power by simulation, intervals against p values, variances by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from scipy.special import stdtr

from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.analysis.verdict import Spread, arm_variances, hold_jointly, holm, of_two, p_value

RNG_SEED = 9
FAMILIES = 10_000
SPREAD = 0.027
"""Of the log ratio of two equal arms."""


def tables(arms, launches, families, wide=(), times=4.0, shift=()):
    """Logarithms of seconds of simulated launches, [families, launches, arms], the baseline first.

    What disturbs a launch is common to its arms.
    """
    sd = np.full(arms, SPREAD / math.sqrt(2))
    sd[list(wide)] *= times
    mean = np.zeros(arms)
    mean[1 : 1 + len(shift)] = -np.log(shift)
    rng = np.random.default_rng(RNG_SEED)
    shared = 0.1 * rng.standard_normal((families, launches, 1))
    return mean + shared + sd * rng.standard_normal((families, launches, arms))


def p_values(found):
    """Of every candidate against the baseline, [families, candidates], by the arms' own spreads."""
    launches, variances, means = found.shape[1], arm_variances(found), found.mean(axis=1)
    sd, df = of_two(variances[:, 1:], variances[:, :1], launches - 1)
    return 2 * stdtr(df, -np.abs(means[:, 1:] - means[:, :1]) * math.sqrt(launches) / sd)


def false_families(found):
    """Share of families of equal arms with any candidate told apart: Holm's first step decides."""
    p = p_values(found)
    return float((p.min(axis=1) * p.shape[1] < 0.05).mean())


@pytest.mark.slow
@pytest.mark.parametrize("launches", [2, 3, 4, 8])
@pytest.mark.parametrize("wide", [(), (0,), (1,), (0, 1)], ids=["alike", "baseline", "candidate", "both"])
@pytest.mark.parametrize("arms", [4, 5, 12])
def test_a_false_verdict_in_a_family_is_rare_though_arms_spread_unlike(arms, wide, launches):
    assert false_families(tables(arms, launches, FAMILIES, wide)) <= 0.06


def test_a_spread_pooled_over_the_arms_is_wrong_far_more_often():
    """The simulation can fail: what the spread of all arms together says where the baseline is four times as wide."""
    found = tables(5, 4, FAMILIES, wide=(0,))
    means, launches, arms = found.mean(axis=1), 4, 5
    residuals = found - found.mean(axis=2, keepdims=True) - means[:, None] + found.mean(axis=(1, 2), keepdims=True)
    df = (launches - 1) * (arms - 1)
    sd = np.sqrt(2 * (residuals**2).sum(axis=(1, 2)) / df / launches)
    p = 2 * stdtr(df, -np.abs(means[:, 1:] - means[:, :1]) / sd[:, None])
    assert (p.min(axis=1) * (arms - 1) < 0.05).mean() > 0.1


def test_a_tenth_is_seen_at_five_arms_and_four_launches():
    one = p_values(tables(5, 4, FAMILIES, shift=(1.1,)))[:, 0]
    assert (one * 4 < 0.05).mean() >= 0.9
    two = p_values(tables(5, 2, FAMILIES, shift=(1.1,)))[:, 0]
    assert (two * 4 < 0.05).mean() < 0.2, "two launches cannot"


@pytest.mark.parametrize("wide", [(), (0,), (2,)])
def test_variances_are_those_of_the_arms_or_wider(wide):
    found = arm_variances(tables(5, 4, FAMILIES, wide)).mean(axis=0) / (SPREAD**2 / 2)
    for arm, variance in enumerate(found):
        true = 16 if arm in wide else 1
        assert true * 0.97 <= variance <= true * 1.2 + (1.2 if wide else 0)


def test_a_wide_arm_has_grubbs_variance():
    """Grubbs: half of what the pairs with the arm vary, less what the other pairs do."""
    table = np.random.default_rng(RNG_SEED).normal(0, 1, (6, 4)) * (1, 1, 5, 1)
    pairs = {two: np.var(table[:, two[0]] - table[:, two[1]], ddof=1) for two in combinations(range(4), 2)}
    with_arm = sum(variance for two, variance in pairs.items() if 2 in two)
    assert arm_variances(table)[2] == pytest.approx((with_arm - sum(pairs.values()) / 3) / 2)


def family(launches=4, arms=5, seed=0, shift=()):
    """Ratios of one simulated comparison, and the spreads that its arms have."""
    rng = np.random.default_rng(seed)
    table = rng.normal(0, SPREAD, (launches, arms)) - np.log([1.0, *shift, *[1.0] * (arms - 1 - len(shift))])
    variances = arm_variances(table)
    pairs = [of_two(variances[0], variances[arm], launches - 1) for arm in range(1, arms)]
    ratios = [paired_ratio(*np.exp(table[:, [0, arm]].T)) for arm in range(1, arms)]
    return table, ratios, [Spread(float(sd), float(df), "arms") for sd, df in pairs]


@pytest.mark.parametrize("seed", range(40))
def test_intervals_leave_1_out_where_holm_tells_apart(seed):
    table, ratios, spreads = family(seed=seed, shift=(1.1, 0.93, 1.05))
    found = hold_jointly(ratios, spreads, 0.95)
    plain = p_values(table[None])[0]
    assert [one.p for one in found] == pytest.approx(holm(plain))
    assert [one.ratio.low > 1 or one.ratio.high < 1 for one in found] == [one.p < 0.05 for one in found]
    assert [one.ratio.estimate for one in found] == [ratio.estimate for ratio in ratios]
    assert {one.family for one in found} == {4} and all(0.95 <= one.level <= 1 - 0.05 / 4 + 1e-12 for one in found)


def test_a_family_of_one_with_its_own_spread_is_the_pair_by_itself():
    ratio = family()[1][0]
    own = Spread(ratio.half_width * 2 / stats.t.ppf(0.975, 3), 3, "own")
    (joint,) = hold_jointly([ratio], [own], 0.95)
    assert joint.ratio.ends == pytest.approx(ratio.ends)
    assert hold_jointly([], [], 0.95) == []


@pytest.mark.parametrize("estimate", [1.0, 1.2])
def test_launches_without_any_spread_are_told_apart_where_they_differ(estimate):
    exact = Ratio(estimate, estimate, estimate, 4)
    (joint, _) = hold_jointly([exact, exact], [Spread(0.0, 3, "arms")] * 2, 0.95)
    assert (joint.p, joint.ratio.ends) == (0.0 if estimate > 1 else 1.0, pytest.approx((estimate, estimate)))
    assert of_two(np.float64(0), np.float64(0), 3) == (0, 3)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_a_p_value_is_that_of_the_paired_t_test():
    times = np.random.default_rng(RNG_SEED).normal(0, 0.05, (6, 2))
    difference = times[:, 0] - times[:, 1]
    error = difference.std(ddof=1) / math.sqrt(6)
    assert p_value(difference.mean(), error, 5) == pytest.approx(stats.ttest_rel(*times.T).pvalue)

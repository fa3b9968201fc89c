import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dynbench.analysis.stats import launches_needed, pair_spread, paired_ratio, smallest_shown

SPREADS = st.floats(1e-4, 1.0)


def share_shown(difference, spread, pairs, comparisons=2000):
    """How often the 95 % interval of simulated paired launches leaves 1 out, on the right side."""
    logs = np.random.default_rng(11).normal(difference, spread, (comparisons, pairs))
    ratios = [paired_ratio(np.exp(row), np.ones(pairs)) for row in logs]
    return float(np.mean([ratio.low > 1 for ratio in ratios]))


@pytest.mark.parametrize("pairs", [4, 8, 16])
def test_the_smallest_shown_difference_is_shown_nine_times_in_ten(pairs):
    difference = smallest_shown(0.08, pairs)
    share = share_shown(difference, 0.08, pairs)
    print(f"{pairs} pairs: {100 * difference:.1f} % shown in {100 * share:.1f} % of 2,000 comparisons")
    assert 0.85 <= share <= 0.95
    assert share_shown(difference / 2, 0.08, pairs) < 0.6


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("pairs", [2, 4, 6, 8, 16, 50, 400])
def test_the_power_is_that_of_the_noncentral_t_distribution(pairs, confidence):
    noncentrality = smallest_shown(0.08, pairs, confidence) / 0.08 * math.sqrt(pairs)
    limit = stats.t.ppf(0.5 + confidence / 2, pairs - 1)
    assert 1 - stats.nct.cdf(limit, pairs - 1, noncentrality) == pytest.approx(0.9, abs=1e-3)


def test_the_launches_needed_show_it_and_far_fewer_do_not():
    launches = launches_needed(0.0953, 0.08)
    assert launches is not None
    assert share_shown(0.0953, 0.08, launches) >= 0.87
    assert share_shown(0.0953, 0.08, launches // 2) < 0.75


@pytest.mark.slow
@given(difference=st.floats(0.005, 1.0), spread=SPREADS)
def test_launches_needed_are_even_and_the_fewest(difference, spread):
    launches = launches_needed(difference, spread)
    if launches is None:
        assert smallest_shown(spread, 1000) > difference
        return
    assert launches % 2 == 0
    assert smallest_shown(spread, launches) <= difference
    assert launches == 2 or smallest_shown(spread, launches - 2) > difference


@given(logs=st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_spread_is_read_back_from_the_interval(logs, confidence):
    ratio = paired_ratio([math.exp(log) for log in logs], [1.0] * len(logs), confidence)
    assert pair_spread(ratio, confidence) == pytest.approx(np.std(logs, ddof=1), rel=1e-6, abs=1e-9)


def test_one_pair_has_no_spread():
    assert pair_spread(paired_ratio([2.0], [1.0]), 0.95) is None

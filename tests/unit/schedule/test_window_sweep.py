"""One sweep over a sorted window, and the guesses that a search starts from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.schedule.cost import CostModel
from dynbench.schedule.window_sweep import WORK_RESOLUTION, SortedWindow, guesses


def test_shares_take_what_their_threshold_allows_and_the_last_takes_the_rest():
    window = SortedWindow(np.array([9, 8, 6, 4, 4, 3, 2, 1]), steps=2, workers=2, cost=CostModel())
    deal = window.sweep([0, 1, 1, 0], [9, 16])
    assert deal.counts == [1, 2, 2, 3]
    assert deal.heads == [9, 16]
    assert deal.lasts == [3 * 3, 2 * 4]
    assert window.price(deal) == 9 + 16
    assert window.step_tokens(deal) == [9 + 6, 14 + 8]


def test_tokens_sq_prices_squares():
    window = SortedWindow(np.array([9, 8, 6, 4]), steps=2, workers=1, cost=CostModel("tokens_sq"))
    assert window.price(window.sweep([0, 1], [1, 1])) == 18**2 + 12**2


def test_real_costs_become_whole_work():
    cost = CostModel("measured", alpha=3.0, beta=0.002, gamma=1e-6)
    lengths = np.array([1000, 400, 30, 1])
    work = np.array(SortedWindow(lengths, 2, 2, cost).work)
    assert work[0] == WORK_RESOLUTION
    assert work / work[0] == pytest.approx(cost.per_sample(lengths) / cost.per_sample(1000), abs=1 / WORK_RESOLUTION)


def test_scarce_capacity_overrides_the_threshold():
    window = SortedWindow(np.full(12, 5), steps=2, workers=2, cost=CostModel(), limits=[3] * 12)
    assert window.sweep([0, 1, 1, 0], [5, 5]).counts == [3, 3, 3, 3]
    scarce = SortedWindow(np.full(12, 5), steps=2, workers=2, cost=CostModel(), limits=[2] * 12)
    assert scarce.sweep([0, 1, 1, 0], [5, 5]).excess == 4


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 20), st.integers(0, 10**6), st.booleans())
def test_every_guess_deals_all_samples(steps, workers, extra, seed, equal):
    batch = workers + extra
    lengths = np.sort(np.random.default_rng(seed).lognormal(4, 1.2, steps * batch).astype(np.int64) + 1)[::-1]
    window = SortedWindow(np.full_like(lengths, 3) if equal else lengths, steps, workers, CostModel())
    for deal in guesses(window, slack_tokens=0.0):
        per_step = np.zeros(steps, dtype=int)
        np.add.at(per_step, deal.order, deal.counts)
        assert per_step.tolist() == [batch] * steps
        assert np.bincount(deal.order).tolist() == [workers] * steps
        assert min(deal.counts) >= 1

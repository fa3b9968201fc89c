"""The least threshold that allows something, found among the costs that a trial meets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.schedule.partition_search import at_least_threshold

COSTS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40, unique=True).map(sorted)


def search(costs: list[float], least: float, low: float, high: float) -> tuple[float | None, int]:
    """What is found where costs from `least` on are allowed, and after how many trials."""
    tried = []

    def trial(threshold: float) -> tuple[float | None, float]:
        tried.append(threshold)
        if threshold >= least:
            return (met := max(cost for cost in costs if cost <= threshold)), met
        return None, min(cost for cost in costs if cost > threshold)

    return at_least_threshold(trial, low, high), len(tried)


@given(COSTS, st.data())
def test_it_is_the_least_wherever_it_begins(costs, data):
    least = data.draw(st.sampled_from(costs))
    low = data.draw(st.floats(1e-4, least))
    high = data.draw(st.floats(low, 2e6))
    assert search(costs, least, low, high)[0] == least


@pytest.mark.parametrize("least", [1.0, 1.5, 40.0, 5_000.0, 99_999.0])
def test_it_gallops_and_halves(least):
    costs = np.arange(1, 100_001, 0.5).tolist()
    found, trials = search(costs, least, 1.0, 1.0)
    assert (found, trials <= 2 + 2 * np.log2(32 * least)) == (least, True), trials

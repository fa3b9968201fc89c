"""What `window` asks `partition` for, how it shares a step's micro-batches out, and in which order its steps come."""

from itertools import islice

import numpy as np
import pytest

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.policy import Problem, make_policy

TIGHT = Capacity.table([[(10, 6), (100, 3)]])


def lengths_of(seed: int, size: int) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(3, 1, size).astype(int), 2, 400)


def test_a_check_refuses_only_what_does_not_fit_spread_over_the_window_either():
    lengths = np.r_[np.full(6, 100), np.full(10, 10)]
    problem = Problem(lengths, 2, 8, capacity=TIGHT, order="file", window=2)
    batches = [np.arange(8), np.arange(8, 16)]
    with pytest.raises(NothingFits):
        make_policy("partition", problem).check(batches, 0)
    make_policy("window", problem).check(batches, 0)
    beyond = Problem(np.r_[np.full(14, 100), np.full(2, 10)], 2, 8, capacity=TIGHT, order="file", window=2)
    with pytest.raises(NothingFits, match="step 3: 8 samples"):
        make_policy("window", beyond).check(batches, 3)


def cost_by_position(seed: int, windows: int, **changes) -> np.ndarray:
    """What the steps of so many windows of 8 cost, shape [windows, 8]."""
    problem = Problem(lengths_of(seed, 8 * 16 * windows), 2, 16, seed=seed, window=8, **changes)
    plans = islice(make_policy("window", problem).plans(), 8 * windows)
    return np.array([step_costs(plan, problem).max() for plan in plans]).reshape(windows, 8)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"micro_batches": 2}, {"speeds": np.array([1.0, 1.7])}], ids=str)
def test_a_step_costs_on_average_the_same_wherever_in_its_window_it_comes(changes):
    costs = cost_by_position(0, 100, **changes)
    error = costs.std() / np.sqrt(len(costs))
    assert np.abs(costs.mean(axis=0) - costs.mean()).max() < 4 * error

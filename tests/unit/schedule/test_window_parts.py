"""What `window` asks `partition` for, how it shares a step's micro-batches out, and in which order its steps come."""

from itertools import islice

import numpy as np
import pytest

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.partition import cut
from dynbench.schedule.partition_search import sort_longest_first
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.window import plan_window, search
from dynbench.schedule.window_sweep import SortedWindow

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


def test_what_is_dealt_to_unequal_ranks_is_dealt_as_partition_deals_each_step():
    dearer = 0
    for seed in range(4):
        problem = Problem(lengths_of(seed, 48), 2, 12, speeds=np.array([1.0, 1.7]), order="file", window=4)
        partition = make_policy("partition", problem)
        for plan in islice(make_policy("window", problem).plans(), 4):
            assert plan.exact == "none", "the window as a whole is not proven"
            (alone,) = partition.deal([plan.sample_ids()], plan.step)
            assert step_costs(plan, problem).max() == pytest.approx(step_costs(alone, problem).max())
            even = np.array_split(np.sort(plan.sample_ids()), 2)
            dearer += step_costs(alone, problem).max() < max(
                len(ids) * problem.lengths[ids].max() / speed for ids, speed in zip(even, (1.0, 1.7), strict=True)
            )
    assert dearer > 4


def test_equal_ranks_get_what_the_window_gave_them_and_no_proof_of_a_step():
    problem = Problem(lengths_of(1, 48), 2, 12, order="file", window=4)
    plans = list(islice(make_policy("window", problem).plans(), 4))
    assert [plan.exact for plan in plans] == ["none"] * 4


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


def test_the_order_of_a_windows_steps_is_drawn_for_each_from_the_seed():
    windows = [cost_by_position(seed, 6) for seed in (0, 1)]
    dearest = [tuple(costs.argmax(axis=1)) for costs in windows]
    assert len(set(dearest)) == 2
    assert all(len(set(places)) > 1 for places in dearest)
    assert np.array_equal(windows[0], cost_by_position(0, 6))


def test_but_for_their_order_the_steps_are_as_the_search_leaves_them():
    lengths = lengths_of(3, 5 * 12)
    longest_first = sort_longest_first(lengths)
    rng = np.random.default_rng([7, 2])
    order, counts = search(SortedWindow(lengths[longest_first], 5, 3, CostModel()), rng)
    left = [set() for _ in range(5)]
    for step, positions in zip(order, cut(longest_first, counts), strict=True):
        left[step].add(tuple(positions))
    dealt = plan_window(lengths, 3, 5, CostModel(), seed=[7, 2])
    assert sorted(map(sorted, left)) == sorted(sorted(map(tuple, step)) for step in dealt)

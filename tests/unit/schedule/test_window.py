"""`window`: brute force on small windows, what its search is made of, and what it gains."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from brute_force import least
from plan_rules import first_plan, heavy_tailed, judge_plan, plans_of, problem_of, total_cost

from dynbench.errors import NothingFits
from dynbench.schedule import window as window_search
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan, single
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace
from dynbench.schedule.window import plan_window
from dynbench.schedule.window_sweep import SortedWindow


@pytest.mark.slow
@pytest.mark.parametrize("cost", [CostModel(), CostModel("tokens_sq"), CostModel("attention", attention_a=0.03)])
def test_small_windows_without_a_limit_on_the_spread_are_near_brute_force(cost, monkeypatch):
    monkeypatch.setattr(window_search, "SPREADS", (1e6,))
    ratios = []
    for seed in range(8):
        lengths = heavy_tailed(8, seed) if seed % 2 else np.random.default_rng(seed).integers(1, 12, 8)
        problem = problem_of(lengths, 2, 4, cost=cost, window=2)
        shares = plan_window(lengths, 2, 2, cost, seed=seed)
        ours = total_cost([StepPlan(step, single(groups)) for step, groups in enumerate(shares)], problem)
        halves = [least(problem_of(lengths[list(half)], 2, cost=cost))[0] for half in combinations(range(8), 4)]
        best = min(half + other for half, other in zip(halves, reversed(halves), strict=True))
        assert best * (1 - 1e-9) <= ours
        ratios.append(ours / best)
    assert np.mean(ratios) < 1.03


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"micro_batches": 2}, {"speeds": np.array([1.0, 1.7])}], ids=str)
def test_a_step_costs_on_average_the_same_wherever_in_its_window_it_comes(changes):
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 1, 8 * 16 * 60).astype(int), 2, 400)
    problem = Problem(lengths, 2, 16, window=8, **changes)
    costs = np.array([step_costs(plan, problem).max() for plan in plans_of("window", problem, 8 * 60)]).reshape(60, 8)
    error = costs.std() / np.sqrt(len(costs))
    assert np.abs(costs.mean(axis=0) - costs.mean()).max() < 4 * error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "batch", "window", "ratio", "most_sweeps"),
    [(2, 64, 8, 2.578, 800), (4, 32, 8, 2.8, 520), (8, 64, 4, 3.02, 260), (4, 32, 16, 2.826, 620)],
)
def test_sst2_windows_reach_their_ratio_to_static_with_no_more_spread_in_few_sweeps(
    workers, batch, window, ratio, most_sweeps, monkeypatch
):
    problem = Problem(built_in_trace("sst2").lengths, workers, batch, window=window)
    sweeps, sweep = [], SortedWindow.sweep
    monkeypatch.setattr(SortedWindow, "sweep", lambda *arguments: sweeps.append(1) or sweep(*arguments))
    static, planned = (plans_of(name, problem, 25 * window) for name in ("static", "window"))
    assert total_cost(static, problem) / total_cost(planned, problem) >= ratio
    spreads = [np.std([problem.lengths[plan.sample_ids()].mean() for plan in plans]) for plans in (static, planned)]
    assert spreads[1] <= spreads[0]
    assert 0 < len(sweeps) <= most_sweeps * 25


TIGHT = Capacity.table([[(10, 6), (100, 3)]])


def test_a_check_refuses_only_what_does_not_fit_spread_over_the_window_either():
    problem = problem_of([100] * 6 + [10] * 10, 2, 8, capacity=TIGHT, window=2)
    batches = [np.arange(8), np.arange(8, 16)]
    with pytest.raises(NothingFits, match="step 0: 8 samples"):
        first_plan("partition", problem)
    with pytest.raises(NothingFits):
        make_policy("partition", problem).check(batches, 0)
    make_policy("window", problem).check(batches, 0)
    for plan in plans_of("window", problem, 2):
        judge_plan(plan, problem)
    beyond = problem_of([100] * 14 + [10] * 2, 2, 8, capacity=TIGHT, window=2)
    with pytest.raises(NothingFits, match="step 3: 8 samples"):
        make_policy("window", beyond).check(batches, 3)

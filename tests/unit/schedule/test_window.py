"""`window`: the rules it keeps, never worse than `partition`, and brute force on small windows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from brute_force import least
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import COSTS, FLAT, first_plan, judge_plan, plain, plans_of, problem_of, taken, total_cost

from dynbench.errors import NothingFits
from dynbench.schedule import window as window_search
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan, single
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace
from dynbench.schedule.window import SPREADS, plan_window, random_variance
from dynbench.schedule.window_sweep import WORK_RESOLUTION, SortedWindow, guesses

PRICED = CostModel("measured", alpha=200.0, further=20.0)


def trace(seed: int, size: int, kind: str = "heavy") -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "heavy":
        return np.clip(rng.lognormal(5, 1, size).round().astype(np.int64), 16, 1024)
    return rng.integers(1, 12, size) if kind == "short" else np.full(size, 7)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    workers = draw(st.integers(1, 5))
    batch = draw(st.integers(workers, 5 * workers + 3))
    window = draw(st.integers(2, 6))
    size = batch * draw(st.integers(window, 2 * window + 1)) + draw(st.integers(0, batch - 1))
    lengths = trace(draw(st.integers(0, 10**6)), size, draw(st.sampled_from(["heavy", "short", "equal"])))
    few = -(-batch // workers)
    capacities = (
        Capacity(),
        Capacity.uniform(few),
        Capacity.uniform(few + 1),
        Capacity.table([[(64, batch), (300, few + 2), (1024, few)]]),
        Capacity.per_rank([few + rank for rank in range(workers)]),
    )
    cost, capacity = draw(st.sampled_from((*COSTS, FLAT, PRICED))), draw(st.sampled_from(capacities))
    speeds = draw(st.sampled_from([None, np.full(workers, 2.0), 1.0 + np.arange(workers)]))
    parts = 1 if not capacity.equal(workers) else draw(st.sampled_from([1, 1, "auto"]))
    if capacity.unlimited and batch >= 2 * workers:
        parts = draw(st.sampled_from([parts, 2]))
    objective = draw(st.sampled_from(["sum", "slots"]))
    same = {"seed": draw(st.integers(0, 9)), "window": window, "micro_batches": parts, "objective": objective}
    return Problem(lengths, workers, batch, cost, capacity, speeds, **same)


@pytest.mark.slow
@given(problems())
@settings(max_examples=120, deadline=None)
def test_windows_keep_every_rule_and_are_never_worse_than_partition(problem):
    steps = problem.data_order().steps_per_epoch
    plans, alone = (plans_of(name, problem, steps) for name in ("window", "partition"))
    for first in range(0, steps, problem.window):
        ours, theirs = (each[first : first + problem.window] for each in (plans, alone))
        assert taken(ours) == taken(theirs)
        assert total_cost(ours, problem) <= total_cost(theirs, problem) * (1 + 1e-9)
    for plan in plans:
        judge_plan(plan, problem)
        assert problem.micro_batches != 2 or problem.speeds is not None or {*map(len, plan.shares)} == {2}
        assert plan.exact == "none" or steps % problem.window == 1


def test_a_window_of_one_batch_is_partition():
    problem = Problem(trace(0, 200), 4, 20, window=1)
    ours, theirs = (plans_of(name, problem, 15) for name in ("window", "partition"))
    assert [(plan.step, plan.exact, plain(plan)) for plan in ours] == [
        (plan.step, plan.exact, plain(plan)) for plan in theirs
    ]


def test_windows_begin_anew_with_every_epoch_and_the_last_may_be_short():
    problem = Problem(trace(1, 16 * 7), 2, 16, window=3)
    plans, static = (plans_of(name, problem, 14) for name in ("window", "static"))
    for first, last in ((0, 3), (3, 6), (6, 7), (7, 10), (10, 13), (13, 14)):
        assert taken(plans[first:last]) == taken(static[first:last])
    assert (plans[5].exact, plans[6].exact) == ("none", "both")


def test_a_window_sorted_into_long_and_short_steps_would_break_the_spread():
    lengths = np.sort(trace(4, 8 * 32))[::-1]
    random = random_variance(SortedWindow(lengths, 8, 4, CostModel()))
    assert lengths.reshape(8, 32).mean(axis=1).var() > 10 * random
    shares = plan_window(lengths, 4, 8, CostModel())
    means = np.array([lengths[np.concatenate(step)].mean() for step in shares])
    assert means.var() <= SPREADS[0] ** 2 * random * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cost", [CostModel(), CostModel("tokens_sq"), CostModel("attention", attention_a=0.03)])
def test_small_windows_without_a_limit_on_the_spread_are_near_brute_force(cost, monkeypatch):
    monkeypatch.setattr(window_search, "SPREADS", (1e6,))
    ratios = []
    for seed in range(8):
        lengths = trace(seed, 8, "heavy" if seed % 2 else "short")
        problem = problem_of(lengths, 2, 4, cost=cost, window=2)
        shares = plan_window(lengths, 2, 2, cost, seed=seed)
        ours = total_cost([StepPlan(step, single(groups)) for step, groups in enumerate(shares)], problem)
        halves = [least(problem_of(lengths[list(half)], 2, cost=cost))[0] for half in combinations(range(8), 4)]
        best = min(half + other for half, other in zip(halves, reversed(halves), strict=True))
        assert best * (1 - 1e-9) <= ours
        ratios.append(ours / best)
    assert np.mean(ratios) < 1.03


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


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"micro_batches": 2}, {"speeds": np.array([1.0, 1.7])}], ids=str)
def test_a_step_costs_on_average_the_same_wherever_in_its_window_it_comes(changes):
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 1, 8 * 16 * 60).astype(int), 2, 400)
    problem = Problem(lengths, 2, 16, window=8, **changes)
    costs = np.array([step_costs(plan, problem).max() for plan in plans_of("window", problem, 8 * 60)]).reshape(60, 8)
    error = costs.std() / np.sqrt(len(costs))
    assert np.abs(costs.mean(axis=0) - costs.mean()).max() < 4 * error


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
    enough, scarce = (SortedWindow(np.full(12, 5), 2, 2, CostModel(), limits=[most] * 12) for most in (3, 2))
    assert enough.sweep([0, 1, 1, 0], [5, 5]).counts == [3, 3, 3, 3]
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

"""What a line of `solve` sums up, and cost types compared by one yardstick."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from plan_rules import plans_of, problem_of

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import share_cost
from dynbench.schedule.measure import (
    Series,
    adjacent_correlation,
    compare_cost_types,
    length_spread,
    policy_window,
    random_mean_lengths,
    run_policy,
)
from dynbench.schedule.policy import Problem, make_policy

LENGTHS = np.array([5, 1, 3, 7, 2, 2, 8, 4])


def eight(**changes) -> Problem:
    return problem_of(LENGTHS, 2, 4, **changes)


def series_of(*real: int) -> Series:
    """Steps of four samples of so many tokens."""
    zeros, tokens = np.zeros(len(real)), np.array(real)
    return Series(zeros, zeros, zeros, tokens, tokens, np.full(len(real), 4), zeros[:, None], zeros, zeros, 0, "both")


def test_what_is_proven_of_all_plans_is_what_is_proven_of_the_weakest():
    problem = problem_of(range(1, 15), 2, 4, window=2)
    assert [plan.exact for plan in plans_of("window", problem, 3)] == ["none", "none", "both"]
    assert run_policy(make_policy("window", problem), problem, 3).exact == "none"
    assert run_policy(make_policy("partition", problem), problem, 3).exact == "both"
    assert [policy_window(make_policy(name, problem)) for name in ("window", "prefix")] == [2, 1]


@pytest.mark.parametrize(("limit_s", "steps"), [(None, 6), (2.5, 2), (5.5, 4), (1e9, 6)])
def test_a_line_ends_when_its_time_is_over(limit_s, steps):
    """The clock is read once at the beginning, twice for a plan, and once before every window but the first."""
    problem = eight(window=2)
    ticks = count()
    series = run_policy(make_policy("window", problem), problem, 6, limit_s, clock=lambda: float(next(ticks)))
    assert len(series) == len(series.plan_ms) == steps


def test_planning_times_are_in_ms_and_those_of_a_window_are_spread_over_its_steps():
    ticks = count()
    series = run_policy(make_policy("static", eight()), eight(), 3, clock=lambda: next(ticks) / 4)
    assert series.plan_ms.tolist() == [250, 250, 250]
    problem = problem_of(range(1, 57), 2, 8, window=4)  # 7 steps an epoch: windows of 4 and 3
    times = iter([0.0, *(t for step in range(7) for t in (100.0 * step, 100.0 * step + (7 if step in (0, 4) else 0)))])
    series = run_policy(make_policy("window", problem), problem, 7, clock=lambda: next(times))
    assert series.plan_ms.tolist() == pytest.approx([1750.0] * 4 + [7000 / 3] * 3)


def test_random_batches_are_those_of_shuffled_epochs():
    means = random_mean_lengths(eight(seed=3), 5)
    plans = plans_of("static", Problem(LENGTHS, 2, 4, seed=3), 5)
    assert means.tolist() == [LENGTHS[plan.sample_ids()].mean() for plan in plans]
    assert len(random_mean_lengths(eight(seed=3), 1)) == 1


def test_spread_is_relative_to_random_batches():
    problem = eight()
    random = random_mean_lengths(problem, 3).std()
    assert random > 0
    assert length_spread(series_of(4, 8, 12), problem) == pytest.approx(np.std([1, 2, 3]) / random)
    assert length_spread(series_of(4), problem) is None
    assert length_spread(series_of(4, 8), problem_of([3] * 8, 2, 4)) is None


@pytest.mark.parametrize(
    ("tokens", "correlation"),
    [
        ((4, 8, 12), None),
        ((4, 8, 12, 16), pytest.approx(1)),
        ((4, 8, 4, 8), pytest.approx(-1)),
        ((4, 4, 4, 8), None),
        ((8, 4, 4, 4), None),
    ],
)
def test_neighbouring_steps_are_correlated_from_four_on_unless_all_but_one_are_alike(tokens, correlation):
    assert adjacent_correlation(series_of(*tokens)) == correlation


def test_a_share_costs_the_same_whoever_runs_it():
    problem = eight(speeds=np.array([1.0, 2.0]), cost=CostModel("measured", alpha=3.0, further=1.0))
    share = (np.array([0, 1]), np.array([3]))
    assert share_cost(share, problem) == 3 + 10 + 1 + 7
    assert share_cost(share, eight(cost=CostModel("tokens_sq"), layout="packed")) == 36 + 49


TYPES = {
    "tokens": CostModel("tokens"),
    "attention": CostModel("attention", attention_a=0.5),
    "measured": CostModel("measured", alpha=3.0, beta=0.1, gamma=0.01),
}
STEPS = 6
BASE = Problem(np.random.default_rng(1).integers(3, 120, 400), workers=3, global_batch=18, seed=2)


def slowest_of(policy: str, planned: Problem, judge: CostModel) -> list[float]:
    """What the slowest rank's share costs a judge, step by step."""
    return [
        max(sum(float(judge.cost(len(ids), planned.lengths[ids].max())) for ids in share) for share in plan.shares)
        for plan in plans_of(policy, planned, STEPS)
    ]


def test_every_plan_of_single_steps_and_micro_batches_is_judged_by_every_yardstick():
    asked = replace(BASE, micro_batches=2, window=3)
    lines = compare_cost_types(asked, ("static", "prefix", "partition", "window"), TYPES, STEPS)
    found = {(line.policy, line.cost_type, line.judge): line for line in lines}
    assert len(found) == 4 * 3 * 2
    for (policy, cost_type, judge), line in found.items():
        slowest = slowest_of(policy, replace(BASE, cost=TYPES[cost_type]), TYPES[judge])
        assert line.mean == pytest.approx(np.mean(slowest))
        assert line.p95 == pytest.approx(np.percentile(slowest, 95))
    for judge in ("tokens", "measured"):  # who minimises the yardstick itself is not beaten on the same samples
        means = {cost: found["partition", cost, judge].mean for cost in TYPES}
        assert means[judge] == min(means.values())


def test_without_measured_coefficients_tokens_alone_judge():
    costs = {name: cost for name, cost in TYPES.items() if name != "measured"}
    assert {line.judge for line in compare_cost_types(BASE, ("partition",), costs, STEPS)} == {"tokens"}


def test_what_cannot_be_planned_is_left_out_and_with_other_costs_is_not():
    tight = replace(BASE, capacity=Capacity.uniform(1))
    assert list(compare_cost_types(tight, ("prefix", "partition"), TYPES, STEPS)) == []
    # Padded to a multiple of 256, which only the first cost asks for, no sample is within the capacities.
    costs = {"tokens": CostModel("tokens", pad_to_multiple_of=256), "measured": TYPES["measured"]}
    tight = replace(BASE, capacity=Capacity.table([[(128, 12)]]))
    lines = compare_cost_types(tight, ("partition", "window"), costs, STEPS)
    assert {(line.policy, line.cost_type) for line in lines} == {("partition", "measured"), ("window", "measured")}

"""What a line of `solve` sums up, and cost types compared by one yardstick."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest

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


def problem_of(**changes) -> Problem:
    return Problem(LENGTHS, 2, 4, **{"order": "file", **changes})


def series_of(real: list[int], samples: int = 4) -> Series:
    zeros, tokens = np.zeros(len(real)), np.array(real)
    return Series(
        zeros, zeros, zeros, tokens, tokens, np.full(len(real), samples), zeros[:, None], zeros, zeros, 0, "both"
    )


def test_two_steps_of_static_by_hand():
    series = run_policy(make_policy("static", problem_of()), problem_of(capacity=Capacity.table([[(4, 2), (9, 1)]])), 2)
    assert len(series) == 2
    assert series.max_cost.tolist() == [14, 16]  # 5 and 3 against 1 and 7; 2 and 8 against 2 and 4
    assert series.variance.tolist() == [4, 16]
    assert series.bound.tolist() == [8, 8]
    assert series.padded_tokens.tolist() == [24, 24]
    assert series.real_tokens.tolist() == [16, 16]
    assert series.samples.tolist() == [4, 4]
    assert series.local_batches.tolist() == [[2, 2], [2, 2]]
    assert series.rank_costs.tolist() == [10, 14]
    assert series.capacity_violations == 3
    assert run_policy(make_policy("static", problem_of()), problem_of(), 2).capacity_violations == 0
    assert series.exact == "none"
    assert series.mean_lengths.tolist() == [4, 4]
    assert series.cost_per_token(1) == 14 / 16
    assert series.cost_per_token(2) == 30 / 32


def test_what_is_proven_of_all_plans_is_what_is_proven_of_the_weakest():
    problem = Problem(np.arange(1, 15), 2, 4, order="file", window=2)
    window = make_policy("window", problem)
    assert [plan.exact for plan in islice(window.plans(), 3)] == ["none", "none", "both"]
    assert run_policy(window, problem, 3).exact == "none"
    assert run_policy(make_policy("partition", problem), problem, 3).exact == "both"
    assert (policy_window(window), policy_window(make_policy("prefix", problem))) == (2, 1)


@pytest.mark.parametrize(("limit_s", "steps"), [(None, 6), (2.5, 2), (5.5, 4), (1e9, 6)])
def test_a_line_ends_when_its_time_is_over(limit_s, steps):
    """The clock is read once at the beginning, twice for a plan, and once before every window but the first."""
    problem = problem_of(window=2)
    ticks = count()
    series = run_policy(make_policy("window", problem), problem, 6, limit_s, clock=lambda: float(next(ticks)))
    assert len(series) == steps


def test_planning_times_are_in_ms():
    ticks = count()
    series = run_policy(make_policy("static", problem_of()), problem_of(), 3, clock=lambda: next(ticks) / 4)
    assert series.plan_ms.tolist() == [250, 250, 250]


def test_random_batches_are_those_of_shuffled_epochs():
    problem = problem_of(seed=3)
    means = random_mean_lengths(problem, 5)
    shuffled = Problem(LENGTHS, 2, 4, seed=3)
    dealt = [LENGTHS[plan.sample_ids()].mean() for plan in islice(make_policy("static", shuffled).plans(), 5)]
    assert means.tolist() == dealt
    assert len(random_mean_lengths(problem, 1)) == 1


def test_spread_is_relative_to_random_batches():
    problem = problem_of()
    random = random_mean_lengths(problem, 3).std()
    assert random > 0
    assert length_spread(series_of([4, 8, 12]), problem) == pytest.approx(np.std([1, 2, 3]) / random)
    assert length_spread(series_of([4]), problem) is None
    assert length_spread(series_of([4, 8]), Problem(np.full(8, 3), 2, 4)) is None


def test_neighbouring_steps_are_correlated_from_four_on():
    assert adjacent_correlation(series_of([4, 8, 12])) is None
    assert adjacent_correlation(series_of([4, 8, 12, 16])) == pytest.approx(1)
    assert adjacent_correlation(series_of([4, 8, 4, 8])) == pytest.approx(-1)
    assert adjacent_correlation(series_of([4, 4, 4, 8])) is None, "all but the last are alike"
    assert adjacent_correlation(series_of([8, 4, 4, 4])) is None


def test_a_share_costs_the_same_whoever_runs_it():
    problem = problem_of(speeds=np.array([1.0, 2.0]), cost=CostModel("measured", alpha=3.0, further=1.0))
    share = (np.array([0, 1]), np.array([3]))
    assert share_cost(share, problem) == 3 + 10 + 1 + 7
    packed = Problem(LENGTHS, 2, 4, cost=CostModel("tokens_sq"), layout="packed")
    assert share_cost(share, packed) == 36 + 49


COSTS = {
    "tokens": CostModel("tokens"),
    "attention": CostModel("attention", attention_a=0.5),
    "measured": CostModel("measured", alpha=3.0, beta=0.1, gamma=0.01),
}
STEPS = 6


def problem(**changes) -> Problem:
    lengths = np.random.default_rng(1).integers(3, 120, 400)
    return replace(Problem(lengths, workers=3, global_batch=18, seed=2), **changes)


def slowest_of(policy: str, planned: Problem, judge: CostModel) -> list[float]:
    """What the slowest rank's share costs a judge, step by step."""
    return [
        max(sum(float(judge.cost(len(ids), planned.lengths[ids].max())) for ids in share) for share in plan.shares)
        for plan in islice(make_policy(policy, planned).plans(), STEPS)
    ]


def test_every_plan_is_judged_by_every_yardstick():
    base = problem()
    found = {(line.policy, line.cost_type, line.judge): line for line in
             compare_cost_types(base, ("prefix", "partition"), COSTS, STEPS)}  # fmt: skip

    assert len(found) == 2 * 3 * 2
    for (policy, cost_type, judge), line in found.items():
        slowest = slowest_of(policy, replace(base, cost=COSTS[cost_type]), COSTS[judge])
        assert line.mean == pytest.approx(np.mean(slowest))
        assert line.p95 == pytest.approx(np.percentile(slowest, 95))
    for judge in ("tokens", "measured"):  # who minimises the yardstick itself is not beaten on the same samples
        means = {cost: found["partition", cost, judge].mean for cost in COSTS}
        assert means[judge] == min(means.values())


def test_without_measured_coefficients_tokens_alone_judge():
    costs = {name: cost for name, cost in COSTS.items() if name != "measured"}

    assert {line.judge for line in compare_cost_types(problem(), ("partition",), costs, STEPS)} == {"tokens"}


def test_what_cannot_be_planned_is_left_out():
    tight = problem(capacity=Capacity.uniform(1))

    assert list(compare_cost_types(tight, ("prefix", "partition"), COSTS, STEPS)) == []


def test_every_rank_runs_one_micro_batch_and_every_step_is_planned_alone_whatever_the_problem_asks():
    asked = problem(micro_batches=2, window=3)

    for line in compare_cost_types(asked, ("static", "partition", "window"), COSTS, STEPS):
        alone = problem(cost=COSTS[line.cost_type], micro_batches=1, window=1)
        assert line.mean == pytest.approx(np.mean(slowest_of(line.policy, alone, COSTS[line.judge]))), line


def test_what_one_cost_cannot_plan_the_others_are_planned_with():
    # Padded to a multiple of 256, which only the first cost asks for, no sample is within the capacities.
    costs = {"tokens": CostModel("tokens", pad_to_multiple_of=256), "measured": COSTS["measured"]}
    tight = problem(capacity=Capacity.table([[(128, 12)]]))

    lines = list(compare_cost_types(tight, ("partition", "window"), costs, STEPS))

    assert {(line.policy, line.cost_type) for line in lines} == {("partition", "measured"), ("window", "measured")}

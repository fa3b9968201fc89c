"""What a line of `solve` sums up, and cost types compared by one yardstick."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from plan_rules import plans_of, problem_of

from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.measure import (
    Series,
    adjacent_correlation,
    compare_cost_types,
    length_spread,
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


@pytest.mark.parametrize(("limit_s", "steps"), [(None, 6), (2.5, 2), (5.0, 4), (1e9, 6)])
def test_a_line_ends_when_its_time_is_over(limit_s, steps):
    """The clock is read once at the beginning, twice for a plan, and once before every window but the first."""
    problem = eight(window=2)
    ticks = count()
    series = run_policy(make_policy("window", problem), problem, 6, limit_s, clock=lambda: float(next(ticks)))
    assert len(series) == len(series.plan_ms) == steps


def test_planning_times_are_in_ms_and_those_of_a_window_are_spread_over_its_steps():
    problem = problem_of(range(1, 57), 2, 8, window=4)  # 7 steps an epoch: windows of 4 and 3
    times = iter([0.0, *(t for step in range(7) for t in (100.0 * step, 100.0 * step + (7 if step in (0, 4) else 0)))])
    series = run_policy(make_policy("window", problem), problem, 7, clock=lambda: next(times))
    assert series.plan_ms.tolist() == pytest.approx([1750.0] * 4 + [7000 / 3] * 3)


def test_spread_and_correlation_of_steps_that_say_nothing_are_none():
    assert length_spread(series_of(4), eight()) is None
    assert length_spread(series_of(4, 8), problem_of([3] * 8, 2, 4)) is None
    for tokens in ((4, 8, 12), (4, 4, 4, 8), (8, 4, 4, 4)):
        assert adjacent_correlation(series_of(*tokens)) is None


TYPES = {
    "tokens": CostModel("tokens"),
    "attention": CostModel("attention", attention_a=0.5),
    "measured": CostModel("measured", alpha=3.0, beta=0.1, gamma=0.01),
}
STEPS = 6
BASE = Problem(np.random.default_rng(1).integers(3, 120, 400), workers=3, global_batch=18, seed=2)


def test_every_plan_of_single_steps_and_micro_batches_is_judged_by_every_yardstick():
    asked = replace(BASE, micro_batches=2, window=3)
    lines = compare_cost_types(asked, ("static", "prefix", "partition", "window"), TYPES, STEPS)
    found = {(line.policy, line.cost_type, line.judge): line for line in lines}
    assert len(found) == 4 * 3 * 2
    for (policy, cost_type, judge), line in found.items():
        plans, judged = plans_of(policy, replace(BASE, cost=TYPES[cost_type]), STEPS), replace(BASE, cost=TYPES[judge])
        slowest = [step_cost(plan, judged) for plan in plans]
        assert line.mean == pytest.approx(np.mean(slowest))
        assert line.p95 == pytest.approx(np.percentile(slowest, 95))
    without = {name: cost for name, cost in TYPES.items() if name != "measured"}
    assert {line.judge for line in compare_cost_types(BASE, ("partition",), without, STEPS)} == {"tokens"}


def test_what_cannot_be_planned_is_left_out_and_with_other_costs_is_not():
    """Padded to a multiple of 256, which only the first cost asks for, no sample is within the capacities."""
    costs = {"tokens": CostModel("tokens", pad_to_multiple_of=256), "measured": TYPES["measured"]}
    tight = replace(BASE, capacity=Capacity.table([[(128, 12)]]))
    lines = compare_cost_types(tight, ("partition", "window"), costs, STEPS)
    assert {(line.policy, line.cost_type) for line in lines} == {("partition", "measured"), ("window", "measured")}

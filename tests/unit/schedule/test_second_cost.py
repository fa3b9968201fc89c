"""A second cost per sample: plans without it, and plans that know of it; small ones are in `test_accumulation`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_rules import first_plan, plain, plans_of, problem_of, total_cost

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting
from dynbench.schedule.policy import Problem, make_policy

PLANS = [name for name in plan_names("padded", "packed") if POLICIES[plan_of(name)[0]].missing is None]


@pytest.mark.parametrize("name", PLANS)
def test_what_costs_nothing_changes_no_plan(name):
    rng = np.random.default_rng(2)
    policy, layout = plan_of(name)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(np.int64), 1, 200)
    without = Problem(lengths, 3, 24, CostModel("measured", alpha=9.0), layout=layout, window=2)
    weightless = replace(without, second=rng.integers(0, 90, 120), second_weight=0.0)
    nothing = replace(without, second=np.zeros_like(lengths))
    expected, *others = (list(map(plain, plans_of(policy, each, 8))) for each in (without, weightless, nothing))
    assert others == [expected, expected]


@pytest.mark.parametrize(
    ("policy", "layout", "changes"),
    [
        *(("partition", layout, {}) for layout in ("padded", "packed")),
        *(("partition", layout, {"speeds": np.array([1.0, 1.0, 0.5, 2.0])}) for layout in ("padded", "packed")),
        *(("partition", layout, {"micro_batches": 4}) for layout in ("padded", "packed")),
        *(("partition", layout, {"micro_batches": 4, "objective": "slots"}) for layout in ("padded", "packed")),
        ("partition", "padded", {"capacity": Capacity.per_rank([40, 40, 40, 60])}),
        ("window", "padded", {"window": 4}),
    ],
    ids=str,
)
def test_plans_that_know_of_it_are_shorter(policy, layout, changes):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 0.8, 1280).astype(np.int64), 4, 512)
    second = np.where(rng.random(1280) < 0.3, rng.integers(50, 800, 1280), 0)
    judge = Problem(lengths, 4, 64, layout=layout, second=second, **changes)
    knows, blind = (plans_of(policy, problem, 20) for problem in (judge, replace(judge, second=None)))
    assert total_cost(knows, judge) < 0.85 * total_cost(blind, judge)


def test_unequal_capacities_are_kept_and_the_largest_batch_that_fits_is_found():
    second, capacity = np.array([90, 0, 0, 0, 0, 0, 0, 50]), Capacity.per_rank([2, 6])
    problem = problem_of([9, 8, 7, 6, 5, 4, 3, 2], second=second, capacity=capacity)
    assert first_plan("partition", problem).local_batches == (2, 6)
    narrow = replace(problem, capacity=Capacity.per_rank([2, 3]))
    with pytest.raises(NothingFits):
        first_plan("partition", narrow)
    assert largest_fitting("partition", narrow, 1).global_batch == 5


@pytest.mark.parametrize(("changes", "message"), [
    ({"second": np.array([1, 2])}, "second: shape"),
    ({"second": np.array([1, -2, 3])}, "from -2"),
    ({"second": np.array([1, 2, 3]), "second_weight": -1.0}, "second_weight"),
    ({"second": np.array([1, 2, 3]), "second_weight": float("nan")}, "second_weight"),
])  # fmt: skip
def test_numbers_that_are_no_cost_are_refused(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        problem_of([3, 2, 1], 1, **changes)
    assert caught.value.hint


def test_pieces_of_samples_have_no_second_number():
    problem = problem_of([5] * 40, 2, 8, layout="packed", second=np.arange(40))
    with pytest.raises(UsageError, match="pieces") as caught:
        make_policy("torchtitan", problem)
    assert caught.value.hint

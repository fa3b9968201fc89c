"""Policies, problems, orders of samples and plans on demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_rules import judge_plan, plain, problem_of

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Planner, Problem, check_trainable, make_policy, policy_class
from dynbench.schedule.solve import cost_is_estimated, speedup_is_estimated

LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 70).astype(int), 1, 200)


def test_an_epoch_is_a_permutation_and_another_seed_another_one():
    first = DataOrder(40, 8, seed=1).permutation(0).tolist()
    assert sorted(first) == list(range(40))
    assert first == DataOrder(40, 8, seed=1).permutation(0).tolist()
    assert first != DataOrder(40, 8, seed=1).permutation(1).tolist()
    assert first != DataOrder(40, 8, seed=2).permutation(0).tolist()


def test_the_incomplete_last_batch_is_dropped():
    batches = DataOrder(41, 8, order="file").epoch_batches(3)
    assert batches.tolist() == np.arange(40).reshape(5, 8).tolist()


@pytest.mark.parametrize("policy", [name for name in POLICIES if POLICIES[name].missing is None])
def test_any_order_of_asking_gives_the_same_plans(policy):
    window = 4 if policy_class(policy).level == "window" else 1
    problem = Problem(LENGTHS, 2, 8, layout=POLICIES[policy].layouts[0], window=window)
    in_order, jumping = Planner(policy, problem), Planner(policy, problem)
    expected = [(plan.step, plain(plan)) for plan in map(in_order.plan, range(25))]
    asked = (3, 4, 4, 24, 0, 1, 17, 16, 8, 9, 6, 22)
    assert [(plan.step, plain(plan)) for plan in map(jumping.plan, asked)] == [expected[step] for step in asked]


def test_consecutive_steps_do_not_start_anew(monkeypatch):
    planner = Planner("prefix", Problem(LENGTHS, 2, 8))
    starts, plans = [], planner.policy.plans
    monkeypatch.setattr(planner.policy, "plans", lambda start: starts.append(start) or plans(start))
    for step in (5, 6, 6, 7, 2):
        planner.plan(step)
    assert starts == [5, 2]


@pytest.mark.parametrize(
    ("step", "changes", "shares"),
    [
        (1, {}, [[[6, 8, 10]], [[7, 9, 11]]]),
        (0, {"micro_batches": 2}, [[[0, 2], [4]], [[1, 3], [5]]]),
        (0, {"micro_batches": "auto", "capacity": Capacity.uniform(1)}, [[[0], [2], [4]], [[1], [3], [5]]]),
        (0, {"micro_batches": "auto"}, [[[0, 2, 4]], [[1, 3, 5]]]),
    ],
)
def test_rank_g_takes_every_g_th_sample_of_the_global_batch_cut_in_order(step, changes, shares):
    problem = problem_of([5, 9, 2, 7, 4, 4, 8, 1, 6, 3, 3, 2], 2, 6, **changes)
    plan = Planner("static", problem).plan(step)
    judge_plan(plan, problem)
    assert plain(plan) == shares


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity": Capacity.per_rank([2, 2])},
        {"capacity": Capacity.uniform(2)},
        {"capacity": Capacity.per_rank([1, 3])},
        {"capacity": Capacity.uniform(2), "speeds": np.array([1.0, 0.5])},
        {"capacity": Capacity.table([[(9, 3)]]), "micro_batches": "auto"},
        {"capacity": Capacity.uniform(1), "micro_batches": 2},
        {"capacity": PackedCapacity.uniform(16), "layout": "packed"},
    ],
)
def test_a_check_says_of_the_same_step_what_dealing_it_would(changes):
    policy = make_policy("partition", problem_of([10, 8, 7, 6, 5, 5, 5, 5], 2, 4, **changes))
    good, bad = np.array([4, 5, 6, 7]), np.array([7, 0, 6, 1, 2])  # a sample more than the batch
    policy.check([good], 3)
    (plan,) = policy.deal([good], 3)
    assert plan.step == 3
    with pytest.raises(NothingFits, match=r"^step 4: ") as dealt:
        policy.deal([good, bad], 3)
    with pytest.raises(NothingFits) as checked:
        policy.check([good, bad], 3)
    assert (checked.value.message, checked.value.hint) == (dealt.value.message, dealt.value.hint)


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        (
            {"needs": "no_such_package"},
            "schedule.policy: lpt needs the package no_such_package, which is not installed",
            "pip install no_such_package",
        ),
        (
            {"in_train": False},
            "schedule.policy: 'lpt' is a reference line of `dynbench solve` and cannot train",
            "Try partition; dynbench solve --list lists all.",
        ),
    ],
    ids=["missing", "no trainer"],
)
def test_a_policy_that_cannot_train_here_is_refused_before_anything_is_launched(monkeypatch, changed, message, hint):
    check_trainable("lpt")
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], **changed))
    with pytest.raises(UsageError) as caught:
        check_trainable("lpt")
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("layout", "fitted_on", "cost", "speedup"),
    [
        ("padded", "padded", False, False),
        ("packed", "packed", False, True),  # its static is padded
        ("packed", "padded", True, True),
        ("packed", None, False, False),
    ],
)
def test_lines_priced_by_a_fit_of_another_layout_are_estimates(layout, fitted_on, cost, speedup):
    line = {"layout": layout, "fitted_on": fitted_on}
    assert (cost_is_estimated(line), speedup_is_estimated(line)) == (cost, speedup)

"""Policies, problems, orders of samples and plans on demand, also for speeds that are known or change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import heavy_tailed, judge_plan, plain, plans_of, problem_of, taken

from dynbench.errors import NothingFits, UsageError
from dynbench.lengths import SHIPPED
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.partition_unequal import SAME_SPEED, distinct_speeds
from dynbench.schedule.plan import DataOrder, by_owner
from dynbench.schedule.policy import Planner, Problem, check_trainable

LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 70).astype(int), 1, 200)

ROWS = {"capacity": PackedCapacity.uniform(10), "layout": "packed"}


def test_the_incomplete_last_batch_is_dropped():
    batches = DataOrder(41, 8, order="file").epoch_batches(3)
    assert batches.tolist() == np.arange(40).reshape(5, 8).tolist()


def test_consecutive_steps_do_not_start_anew(monkeypatch):
    planner = Planner("prefix", Problem(LENGTHS, 2, 8))
    starts, plans = [], planner.policy.plans
    monkeypatch.setattr(planner.policy, "plans", lambda start: starts.append(start) or plans(start))
    for step in (5, 6, 6, 7, 2):
        planner.plan(step)
    assert starts == [5, 2]


def test_what_does_not_fit_is_told_again_where_it_is_asked_for_again():
    planner = Planner("partition", problem_of([5, 50], 2, capacity=Capacity.table([[(20, 4)]])))
    for _ in range(2):
        with pytest.raises(NothingFits):
            planner.plan(0)


def test_ranks_without_a_value_have_an_empty_group():
    assert [own.tolist() for own in by_owner(np.array([7, 8, 9]), np.array([1, 0, 1]), 3)] == [[8], [7, 9], []]


@pytest.mark.parametrize(
    ("step", "changes", "shares"),
    [
        (1, {}, [[[6, 8, 10]], [[7, 9, 11]]]),
        (0, {"micro_batches": 2}, [[[0, 2], [4]], [[1, 3], [5]]]),
        (0, {"micro_batches": "auto", "capacity": Capacity.uniform(1)}, [[[0], [2], [4]], [[1], [3], [5]]]),
        (0, {"micro_batches": "auto", **ROWS}, [[[0, 2], [4]], [[1], [3], [5]]]),
    ],
)
def test_rank_g_takes_every_g_th_sample_of_the_global_batch_cut_in_order(step, changes, shares):
    problem = problem_of([5, 9, 2, 7, 4, 4, 8, 1, 6, 3, 3, 2], 2, 6, **changes)
    plan = Planner("static", problem).plan(step)
    judge_plan(plan, problem)
    assert plain(plan) == shares


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


SECOND_SLOW = np.array([1.0, 0.25])


def test_noise_is_not_a_difference_and_classes_get_their_median_relative_to_the_fastest():
    assert distinct_speeds([1.0, SAME_SPEED]) is None
    assert distinct_speeds([10.0, 5.1, 9.8, 5.0, 9.4]) == pytest.approx(np.array([1, 5.05 / 9.8, 1, 5.05 / 9.8, 1]))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_no_rank_is_far_from_its_class(measured):
    found = distinct_speeds(measured)
    speeds = np.array(measured) / max(measured)
    if found is None:
        assert speeds.min() >= SAME_SPEED * (1 - 1e-12)
    else:
        assert found.max() == 1
        ratio = found / speeds
        assert ratio.max() / ratio.min() <= 1 / SAME_SPEED**2 * (1 + 1e-9)


@pytest.mark.parametrize(("known", "least", "most"), [(True, 1, 1.1), (False, 1.5, 3)])
def test_known_speeds_bring_one_slow_rank_of_four_within_a_tenth_of_the_bound(known, least, most):
    lengths = np.random.default_rng(0).permutation(SHIPPED["sst2"])
    problem = Problem(lengths, 4, 64, speeds=np.array([1.0, 1.0, 1.0, 0.5]), micro_batches=4)
    blind = Problem(lengths, 4, 64, micro_batches=4)
    facts = [step_facts(plan, problem) for plan in plans_of("partition", problem if known else blind, 20)]
    assert least <= sum(step.max_cost for step in facts) / sum(step.bound for step in facts) < most


@pytest.mark.parametrize(("seed", "most"), [(0, 1.28), (1, 1.27)])
def test_more_ranks_than_are_searched_are_swept_by_speed_and_by_capacity(seed, most):
    """One of the two is worse by 3 % here, and each is the better one once."""
    rng = np.random.default_rng(seed)
    speeds, capacity = rng.uniform(0.3, 1, 13), Capacity.per_rank(rng.permutation(np.arange(6, 19)).tolist())
    problem = Problem(heavy_tailed(640, seed), 13, 104, capacity=capacity, speeds=speeds)
    plans = plans_of("partition", problem, 3)
    facts = [step_facts(plan, problem) for plan in plans]
    assert {plan.exact for plan in plans} == {"none"}
    assert sum(step.max_cost for step in facts) <= most * sum(step.bound for step in facts)


@pytest.mark.parametrize(("policy", "changes"), [("partition", {}), ("window", {"window": 4}), ("prefix", {})])
def test_changed_speeds_lose_no_sample_and_take_none_twice(policy, changes):
    problem = Problem(LENGTHS, 2, 8, seed=3, **changes)
    planner, plans = Planner(policy, problem), []
    for step in range(8):
        if step == 3:
            planner.change_speeds(SECOND_SLOW)
        plans.append(planner.plan(step))
        judge_plan(plans[-1], problem)
    if policy == "prefix":
        for rank in range(2):
            mine = np.concatenate([plan.shares[rank][0] for plan in plans])
            stream = np.concatenate([problem.data_order().permutation(epoch)[rank::2] for epoch in range(2)])
            assert mine.tolist() == stream[: len(mine)].tolist()
    else:
        assert taken(plans) == sorted(problem.data_order().epoch_batches(0)[:8].ravel().tolist())
    tokens = np.sum([step_facts(plan, problem).padded_tokens for plan in plans[4:]], axis=0)
    assert tokens[0] > 2 * tokens[1]


def test_a_window_that_has_begun_is_ended_with_the_old_speeds():
    problem = Problem(LENGTHS, 2, 8, window=4)
    steady, changed = Planner("window", problem), Planner("window", problem)
    for step in range(8):
        if step == 1:
            changed.change_speeds(SECOND_SLOW)
        assert (plain(steady.plan(step)) == plain(changed.plan(step))) == (step < 4)


def test_speeds_that_became_equal_are_planned_as_equal():
    planner = Planner("partition", Problem(LENGTHS, 2, 8, speeds=SECOND_SLOW))
    assert planner.plan(0).exact == "maximum"
    planner.change_speeds(None)
    assert planner.plan(1).exact == "both"

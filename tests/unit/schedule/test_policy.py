"""Policies, problems, orders of samples and plans on demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_rules import judge_plan

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Planner, Problem, check_trainable, make_policy
from dynbench.schedule.solve import cost_is_estimated, speedup_is_estimated
from dynbench.schedule.traces import Trace, describe


def test_an_epoch_is_a_permutation_and_another_seed_another_one():
    order = DataOrder(40, 8, seed=1)
    assert sorted(order.permutation(0)) == list(range(40))
    assert order.permutation(0).tolist() == DataOrder(40, 8, seed=1).permutation(0).tolist()
    assert order.permutation(0).tolist() != order.permutation(1).tolist()
    assert order.permutation(0).tolist() != DataOrder(40, 8, seed=2).permutation(0).tolist()


def test_the_incomplete_last_batch_is_dropped():
    batches = DataOrder(41, 8, order="file").epoch_batches(3)
    assert batches.tolist() == np.arange(40).reshape(5, 8).tolist()


LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 70).astype(int), 1, 200)


def plain(plan):
    return plan.step, [[ids.tolist() for ids in share] for share in plan.shares]


@pytest.mark.parametrize("policy", ["static", "partition", "prefix"])
def test_any_order_of_asking_gives_the_same_plans(policy):
    problem = Problem(LENGTHS, 2, 8)
    in_order = Planner(policy, problem)
    expected = [plain(in_order.plan(step)) for step in range(25)]
    jumping = Planner(policy, problem)
    for step in (3, 4, 4, 24, 0, 1, 17, 16, 8, 9):
        assert plain(jumping.plan(step)) == expected[step]


def test_consecutive_steps_do_not_start_anew(monkeypatch):
    planner = Planner("prefix", Problem(LENGTHS, 2, 8))
    starts = []
    monkeypatch.setattr(
        planner.policy, "plans", lambda start, real=planner.policy.plans: starts.append(start) or real(start)
    )
    for step in (5, 6, 6, 7, 2):
        planner.plan(step)
    assert starts == [5, 2]


TEST_STATIC_LENGTHS = np.array([5, 9, 2, 7, 4, 4, 8, 1, 6, 3, 3, 2])


def plan(step=0, **changes):
    problem = Problem(**({"lengths": TEST_STATIC_LENGTHS, "workers": 2, "global_batch": 6, "order": "file"} | changes))
    made = Planner("static", problem).plan(step)
    judge_plan(made, problem)
    return [[ids.tolist() for ids in share] for share in made.shares]


def test_rank_g_takes_every_g_th_sample_of_the_global_batch():
    assert plan(step=1) == [[[6, 8, 10]], [[7, 9, 11]]]


def test_micro_batches_cut_a_share_in_order():
    assert plan(micro_batches=2) == [[[0, 2], [4]], [[1, 3], [5]]]
    assert plan(micro_batches="auto", capacity=Capacity.uniform(1)) == [[[0], [2], [4]], [[1], [3], [5]]]
    assert plan(micro_batches="auto") == plan()


def problem_of(lengths=tuple(range(1, 15)), workers=2, batch=4, **changes) -> Problem:
    return Problem(np.array(lengths), workers, batch, **{"order": "file", **changes})


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
    policy = make_policy("partition", problem_of([10, 8, 7, 6, 5, 5, 5, 5], batch=4, **changes))
    good, bad = np.array([4, 5, 6, 7]), np.array([7, 0, 6, 1, 2])  # a sample more than the batch
    policy.check([good], 3)
    (plan,) = policy.deal([good], 3)
    assert plan.step == 3
    with pytest.raises(NothingFits) as dealt:
        policy.deal([good, bad], 3)
    with pytest.raises(NothingFits) as checked:
        policy.check([good, bad], 3)
    assert checked.value.message == dealt.value.message
    assert checked.value.message.startswith("step 4: ")
    assert checked.value.hint == dealt.value.hint


def test_a_policy_that_cannot_train_here_is_refused_before_anything_is_launched(monkeypatch):
    check_trainable("lpt")
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], needs="no_such_package"))
    with pytest.raises(UsageError) as caught:
        check_trainable("lpt")
    assert caught.value.message == "schedule.policy: lpt needs the package no_such_package, which is not installed"
    assert caught.value.hint == "pip install no_such_package"
    monkeypatch.setitem(POLICIES.entries, "lpt", replace(POLICIES["lpt"], in_train=False))
    with pytest.raises(UsageError) as caught:
        check_trainable("lpt")
    assert caught.value.message == "schedule.policy: 'lpt' is a reference line of `dynbench solve` and cannot train"
    assert caught.value.hint == "Try partition; dynbench solve --list lists all."


def test_lines_priced_by_a_fit_of_another_layout_are_estimates():
    padded, packed = {"layout": "padded", "fitted_on": "padded"}, {"layout": "packed", "fitted_on": "packed"}
    assert (cost_is_estimated(padded), speedup_is_estimated(padded)) == (False, False)
    assert (cost_is_estimated(packed), speedup_is_estimated(packed)) == (False, True), "its static is padded"
    of_padded = packed | {"fitted_on": "padded"}
    assert (cost_is_estimated(of_padded), speedup_is_estimated(of_padded)) == (True, True)
    given = packed | {"fitted_on": None}
    assert (cost_is_estimated(given), speedup_is_estimated(given)) == (False, False)


def test_lengths_in_one_line():
    found = describe(np.array([1, 2, 3, 4, 90]))
    assert (found.samples, found.mean, found.min, found.p50, found.max) == (5, 20.0, 1, 3.0, 90)
    assert found.sd == pytest.approx(np.sqrt((19**2 + 18**2 + 17**2 + 16**2 + 70**2) / 5))
    assert (found.p95, found.p99) == (pytest.approx(72.8), pytest.approx(86.56))


def test_samples_that_were_cut_are_counted_over_all_cuts():
    trace = Trace("t", np.array([5, 10, 20, 40]), "here", train_max_length=10)
    assert (trace.cut_samples, trace.longer_than_train, trace.cut(None)) == (0, 2, trace)
    once = trace.cut(20)
    assert (once.lengths.tolist(), once.cut_samples, once.longer_than_train) == ([5, 10, 20, 20], 1, 2)
    twice = once.cut(10)
    assert (twice.lengths.tolist(), twice.cut_samples, twice.longer_than_train) == ([5, 10, 10, 10], 3, 0)
    assert Trace("t", np.array([5]), "here").longer_than_train == 0

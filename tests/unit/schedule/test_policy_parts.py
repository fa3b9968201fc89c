"""How policies cut the stream, check whole runs, and take the numbers they are given, by hand."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import TRIED_ONE_BY_ONE, _candidates, _most
from dynbench.schedule.plan import StepPlan, single
from dynbench.schedule.policy import BatchPolicy, Problem, check_trainable, make_policy
from dynbench.schedule.solve import cost_is_estimated, speedup_is_estimated
from dynbench.schedule.static import Static
from dynbench.schedule.traces import Trace, built_in_trace, describe, lognormal_lengths
from dynbench.schedule.window import Window


def problem_of(lengths=tuple(range(1, 15)), workers=2, batch=4, **changes) -> Problem:
    return Problem(np.array(lengths), workers, batch, **{"order": "file", **changes})


def test_windows_are_counted_within_each_epoch_and_asked_for_from_any_step():
    policy = make_policy("window", problem_of(window=2))  # 3 steps an epoch: windows of 2 and 1
    assert [(len(batches), first) for batches, first in islice(policy._windows(0), 5)] == [
        (2, 0), (1, 2), (2, 3), (1, 5), (2, 6)
    ]  # fmt: skip
    assert [(len(batches), first) for batches, first in islice(policy._windows(4), 3)] == [(2, 3), (1, 5), (2, 6)]
    assert [(len(batches), first) for batches, first in islice(policy._windows(5), 2)] == [(1, 5), (2, 6)]
    (batches, _) = next(policy._windows(2))
    assert [batch.tolist() for batch in batches] == [[8, 9, 10, 11]]
    assert [plan.step for plan in islice(policy.plans(4), 3)] == [4, 5, 6]


def test_a_run_is_checked_window_by_window_and_no_further_than_it_goes():
    told: list[int] = []
    assert make_policy("window", problem_of(window=2, capacity=Capacity.uniform(4))).misfit(4, told.append) is None
    assert told == [0, 2, 3]
    lengths = [5] * 8 + [50] * 6
    short = Capacity.table([[(40, 4)]])
    for policy, steps_told in (("partition", [0, 1, 2]), ("static", [0, 1, 2]), ("prefix", [1, 2])):
        told.clear()
        problem = problem_of(lengths, capacity=short, buffer=2)
        assert make_policy(policy, problem).misfit(2) is None
        error = make_policy(policy, problem).misfit(9, told.append)
        assert type(error) is NothingFits
        assert (error.message.split(":")[0], told) == ("step 2", steps_told)


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


def test_a_policy_without_a_check_of_its_own_is_checked_by_dealing():
    policy = Static(problem_of([5] * 8, capacity=Capacity.uniform(1)))
    with pytest.raises(BatchTooLarge, match=r"^step 7: 4 samples"):
        BatchPolicy.check(policy, [np.arange(4)], 7)


def test_the_least_total_keeps_to_the_capacities():
    """Without them one rank would take the 10 alone, for 13 in all."""
    problem = problem_of([10, 1, 1, 1], batch=4, capacity=Capacity.uniform(2))
    (plan,) = make_policy("partition", problem).deal([np.arange(4)], 0)
    assert (plan.local_batches, plan.exact) == ((2, 2), "both")
    (free,) = make_policy("partition", replace(problem, capacity=Capacity())).deal([np.arange(4)], 0)
    assert free.local_batches == (1, 3)


def test_what_is_proven_of_partitions_plans(monkeypatch):
    lengths = [9, 8, 7, 6, 5, 5, 5, 5]
    equal = make_policy("partition", problem_of(lengths, batch=8))
    batch = np.arange(8)
    (best,) = equal.deal([batch], 2)
    counts = [len(ids) for (ids,) in best.shares]
    size = 2 * 8 * max(counts)
    for limit, exact in ((size, "both"), (size - 1, "maximum")):
        monkeypatch.setattr("dynbench.schedule.partition.TABLE_LIMIT", limit)
        assert equal.deal([batch], 2)[0].exact == exact
    monkeypatch.undo()
    monkeypatch.setattr("dynbench.schedule.partition.fits_table", lambda ranks, most: False)
    assert equal.deal([batch], 2)[0].exact == "maximum"
    unequal = make_policy("partition", problem_of(lengths, batch=8, speeds=np.array([1.0, 0.5])))
    (found,) = unequal.deal([batch], 2)
    assert (found.step, found.exact) == (2, "maximum")
    unequal.change_speeds(np.array([0.5, 1.0]))
    (turned,) = unequal.deal([batch], 2)
    assert [ids.tolist() for (ids,) in turned.shares] == [ids.tolist() for (ids,) in found.shares][::-1]
    several = make_policy("partition", problem_of(lengths, batch=8, micro_batches=2))
    assert [(plan.step, plan.exact) for plan in several.deal([batch, batch], 5)] == [(5, "maximum"), (6, "maximum")]


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


def parts_of(plan: StepPlan) -> list[list[list[int]]]:
    return [[ids.tolist() for ids in share] for share in plan.shares]


@pytest.mark.parametrize(
    ("capacity", "parts"),
    [
        (Capacity.table([[(3, 3), (9, 2)]]), 2),
        (Capacity.table([[(9, 1)]]), 3),
        (Capacity.per_rank([3, 3]), 1),
        (Capacity.table([[(9, 4)], [(4, 9), (9, 2)]]), 2),
    ],
)
def test_static_splits_shares_as_the_tightest_rank_asks_for(capacity, parts):
    problem = problem_of([1, 2, 3, 4, 5, 6], batch=6, capacity=capacity, micro_batches="auto")
    if not capacity.equal(2):
        problem = replace(problem, micro_batches=1)
        with pytest.raises(BatchTooLarge) as caught:
            next(Static(problem).plans())
        assert "Of this step's samples 4 fit, of other steps' maybe fewer: lower the global batch." in caught.value.hint
        return
    assert [len(share) for share in next(Static(problem).plans()).shares] == [parts] * 2


def test_the_largest_batch_that_static_could_hold_counts_every_micro_batch():
    problem = problem_of([5] * 14, batch=14, capacity=Capacity.uniform(3), micro_batches=2)
    with pytest.raises(BatchTooLarge, match="14 samples") as caught:
        next(Static(problem).plans())
    assert "samples 12 fit" in caught.value.hint
    fits = problem_of([5] * 12, batch=12, capacity=Capacity.uniform(3), micro_batches=2)
    assert parts_of(next(Static(fits).plans()))[0] == [[0, 2, 4], [6, 8, 10]]


def test_statics_rows_are_as_few_as_hold_the_share_in_its_order():
    lengths = [9, 1, 8, 1, 7, 1, 6, 1]
    packed = {"batch": 8, "layout": "packed"}
    free = problem_of(lengths, **packed, micro_batches="auto")
    assert parts_of(next(Static(free).plans())) == [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]
    assert parts_of(next(Static(replace(free, micro_batches=2)).plans())) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    held = replace(free, capacity=PackedCapacity.uniform(17))
    assert parts_of(next(Static(held).plans())) == [[[0, 2], [4, 6]], [[1, 3, 5, 7]]]
    # Three rows, of 9 and 8, of 7, and of 6: the first is too long, so there are four.
    single_rows = replace(free, capacity=PackedCapacity.table([[(8, 99), (9, 16)]]))
    assert parts_of(next(Static(single_rows).plans()))[0] == [[0], [2], [4], [6]]
    with pytest.raises(BatchTooLarge, match="4 samples of 30 tokens do not fit into 2 packed rows"):
        Static(replace(single_rows, micro_batches=2)).check([np.arange(8)], 0)


def test_statics_rows_keep_to_the_limit_of_their_own_rank():
    lengths = [9, 1, 8, 1, 7, 1, 6, 1]
    problem = problem_of(lengths, batch=8, layout="packed", capacity=PackedCapacity.per_rank([30, 9]))
    (plan,) = Static(problem).deal([np.arange(8)], 0)
    assert (parts_of(plan), plan.packed) == ([[[0, 2, 4, 6]], [[1, 3, 5, 7]]], True)
    tight = replace(problem, capacity=PackedCapacity.uniform(9), micro_batches="auto")
    assert parts_of(Static(tight).deal([np.arange(8)], 0)[0])[0] == [[0], [2], [4], [6]]
    assert not Static(problem_of(lengths, batch=8)).deal([np.arange(8)], 0)[0].packed
    one_each = problem_of(lengths, batch=8, micro_batches=4)
    assert parts_of(Static(one_each).deal([np.arange(8)], 0)[0])[1] == [[1], [3], [5], [7]]


def test_batches_below_one_that_does_not_fit_fall_by_one_and_later_by_a_hundredth():
    problem = problem_of([1] * 9, workers=2, batch=9, capacity=Capacity.uniform(3))
    assert list(_candidates("partition", problem)) == [6, 5, 4, 3, 2]
    assert list(_candidates("static", problem)) == [6, 4, 2]
    assert list(_candidates("partition", replace(problem, micro_batches="auto"))) == [8, 7, 6, 5, 4, 3, 2]
    assert list(_candidates("static", replace(problem, micro_batches="auto"))) == [8, 6, 4, 2]
    large = problem_of([1] * 3000, workers=2, batch=3000)
    tried = list(_candidates("partition", large))
    assert tried[: TRIED_ONE_BY_ONE + 1] == list(range(2999, 2999 - TRIED_ONE_BY_ONE - 1, -1))
    assert (np.diff(tried)[TRIED_ONE_BY_ONE:] == [-max(1, batch // 100) for batch in tried[TRIED_ONE_BY_ONE:-1]]).all()
    assert tried[-1] == 2
    even = list(_candidates("static", large))
    assert all(batch % 2 == 0 for batch in even) and even[-1] == 2
    steps = -np.diff(even)[TRIED_ONE_BY_ONE:]
    assert steps.tolist() == [max(1, batch // 100 // 2) * 2 for batch in even[TRIED_ONE_BY_ONE:-1]]


def test_no_step_holds_more_than_all_ranks_hold_of_the_shortest():
    problem = problem_of([3, 3, 9], workers=2, batch=3, capacity=Capacity.table([[(3, 5), (9, 1)], [(3, 2), (9, 1)]]))
    assert _most("partition", problem) == 7
    assert _most("static", problem) == 4
    equal = replace(problem, capacity=Capacity.table([[(3, 5), (9, 1)]]))
    assert _most("partition", replace(equal, micro_batches=2)) == 20
    assert _most("partition", replace(equal, micro_batches="auto")) == 3
    packed = problem_of([3, 4, 9], workers=2, batch=3, capacity=PackedCapacity.uniform(11), layout="packed")
    assert _most("partition", packed) == 6


def test_a_window_that_is_no_cheaper_together_is_dealt_one_by_one(monkeypatch):
    problem = problem_of(window=2)
    alone = make_policy("partition", problem)
    window = make_policy("window", problem)
    batches = list(problem.data_order().epoch_batches(0)[:2])
    dear = [StepPlan(step, single([ids[:3], ids[3:]]), "both") for step, ids in enumerate(batches)]
    monkeypatch.setattr(Window, "_together", lambda *_: dear)
    dealt = window.deal(batches, 0)
    assert [parts_of(plan) for plan in dealt] == [parts_of(plan) for plan in alone.deal(batches, 0)]
    assert {plan.exact for plan in dealt} == {"none"}, "of the window together nothing is proven"
    best = list(alone.deal(batches, 0))
    monkeypatch.setattr(Window, "_together", lambda *_: best)
    assert window.deal(batches, 0) is best, "as cheap is taken as it is"
    monkeypatch.setattr(Window, "_together", lambda *_: None)
    assert [parts_of(plan) for plan in window.deal(batches, 0)] == [parts_of(plan) for plan in best]


@pytest.mark.parametrize("speeds", [None, np.array([2.0, 2.0]), np.array([1.0, 0.5])])
@pytest.mark.parametrize("cost", [CostModel(), CostModel("tokens_sq"), CostModel("measured", alpha=3.0)])
def test_what_batches_cost_alone_is_what_partition_plans_cost(speeds, cost):
    problem = problem_of([5, 9, 2, 7, 4, 4, 8, 1, 6, 3, 3, 2], cost=cost, speeds=speeds, window=3)
    window = make_policy("window", problem)
    batches = list(problem.data_order().epoch_batches(0))
    plans = make_policy("partition", problem).deal(batches, 0)
    assert window._cost_alone(batches, 0) == pytest.approx(window._total_cost(plans))
    for capacity in (Capacity.uniform(1), Capacity.per_rank([1, 2])):
        assert make_policy("window", replace(problem, capacity=capacity))._cost_alone(batches, 0) == np.inf


def test_auto_stops_where_further_micro_batches_gain_nothing(monkeypatch):
    tried: list[int] = []
    costs: dict[int, float | None] = {}

    def dealt(self, ids, steps, first_step, parts):
        tried.append(parts)
        return None if costs.get(parts) is None else [parts]

    monkeypatch.setattr(Window, "_dealt", dealt)
    monkeypatch.setattr(Window, "_total_cost", lambda self, plans: costs[plans[0]])
    ids = np.arange(8)
    for kind, known, expected in (
        ("measured", {1: 9.0, 2: 7.0, 3: 7.0, 4: 1.0}, ([1, 2, 3], 2)),
        ("measured", {1: None, 2: 7.0, 3: 6.0, 4: None}, ([1, 2, 3, 4], 3)),
        ("measured", {1: None, 2: None, 3: None, 4: None}, ([1, 2, 3, 4], None)),
        ("tokens", {1: None, 2: 7.0, 3: 6.0}, ([1, 2], 2)),
    ):
        tried.clear()
        costs.clear()
        costs.update(known)
        problem = problem_of(range(1, 17), batch=8, cost=CostModel(kind), micro_batches="auto", window=2)
        found = make_policy("window", problem)._together(ids, 2, 0)
        assert (tried, None if found is None else found[0]) == expected


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


def test_quantiles_of_a_lognormal_without_a_draw():
    assert lognormal_lengths(1).tolist() == [148]  # the median, exp(5)
    assert lognormal_lengths(3, mu=4.0, sigma=0.5, low=1).tolist() == [34, 55, 89]
    whole = lognormal_lengths()
    assert (len(whole), whole.min(), whole.max(), whole.dtype) == (50_000, 16, 1024, np.int64)
    assert np.median(whole) == 148
    assert np.log(lognormal_lengths(2001, low=1, high=10**6)).std() == pytest.approx(1, abs=0.01)
    assert built_in_trace("lognormal").lengths.tolist() != whole.tolist(), "its order is no length's"
    assert sorted(built_in_trace("lognormal").lengths) == whole.tolist()


def test_samples_that_were_cut_are_counted_over_all_cuts():
    trace = Trace("t", np.array([5, 10, 20, 40]), "here", train_max_length=10)
    assert (trace.cut_samples, trace.longer_than_train, trace.cut(None)) == (0, 2, trace)
    once = trace.cut(20)
    assert (once.lengths.tolist(), once.cut_samples, once.longer_than_train) == ([5, 10, 20, 20], 1, 2)
    twice = once.cut(10)
    assert (twice.lengths.tolist(), twice.cut_samples, twice.longer_than_train) == ([5, 10, 10, 10], 3, 0)
    assert Trace("t", np.array([5]), "here").longer_than_train == 0

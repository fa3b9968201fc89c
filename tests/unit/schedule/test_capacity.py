from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import UNLIMITED, Capacity, PackedCapacity, capacity_of
from dynbench.schedule.policy import Planner, Problem, policy_class

TABLE = [(128, 4), (32, 16), (64, 8)]


def test_without_arguments_nothing_is_limited():
    assert Capacity().unlimited
    assert Capacity().limit(3, 10**6) == UNLIMITED


def test_one_number_holds_for_every_rank_and_length():
    capacity = Capacity.uniform(7)
    assert capacity.limits(3, np.array([1, 500])).tolist() == [[7, 7]] * 3
    assert capacity.equal(3)
    assert not capacity.unlimited


def test_one_number_per_rank():
    capacity = Capacity.per_rank([4, 8])
    assert [capacity.limit(rank, 100) for rank in (0, 1)] == [4, 8]
    assert capacity.limits(2, np.array([1, 100])).tolist() == [[4, 4], [8, 8]]
    assert not capacity.equal(2)
    assert Capacity.per_rank([5, 5]).equal(2)


@pytest.mark.parametrize(("length", "limit"), [(1, 16), (32, 16), (33, 8), (64, 8), (65, 4), (128, 4), (129, 0)])
def test_between_two_lengths_the_longer_ones_limit_holds(length, limit):
    assert Capacity.table([TABLE]).limit(0, length) == limit


def test_a_limit_above_that_of_a_shorter_length_is_lowered():
    assert Capacity.table([[(32, 4), (64, 6)]]).limit(0, 64) == 4


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6),
    st.lists(st.integers(1, 80), min_size=1),
)
def test_limits_never_rise_with_length_and_agree_with_limit(row, lengths):
    capacity, lengths = Capacity.table([row]), np.sort(np.array(lengths))
    limits = capacity.limits(2, lengths)
    assert (np.diff(limits, axis=1) <= 0).all()
    assert limits[1].tolist() == [capacity.limit(1, int(length)) for length in lengths]


def test_what_is_refused_is_named_in_its_unit():
    for make, said in (
        (lambda: Capacity.uniform(0), "schedule.capacity: 0 samples at length"),
        (lambda: Capacity.per_rank([4, 0]), "schedule.capacity[1]: 0 samples at length"),
        (lambda: PackedCapacity.uniform(0), "schedule.capacity: 0 tokens at length"),
        (lambda: PackedCapacity.per_rank([0]), "schedule.capacity[0]: 0 tokens at length"),
    ):
        with pytest.raises(UsageError) as caught:
            make()
        assert caught.value.message.startswith(said)


@pytest.mark.parametrize("policy", [name for name in POLICIES if POLICIES[name].missing is None])
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 0.5])])
def test_where_no_limit_was_found_plans_are_those_without_limits(policy, speeds):
    layout = POLICIES[policy].layouts[0]
    kind = Capacity if layout == "padded" else PackedCapacity
    lengths = np.random.default_rng(0).integers(2, 60, size=300)
    window = 3 if policy_class(policy).level == "window" else 1
    free = Problem(lengths, workers=2, global_batch=40, speeds=speeds, window=window, buffer=40, layout=layout)
    probed = replace(free, capacity=kind.table([[(32, None), (64, None)]]))
    assert not probed.capacity.unlimited
    for step in range(4):
        ours, theirs = (Planner(policy, problem).plan(step).shares for problem in (probed, free))
        assert [[ids.tolist() for ids in share] for share in ours] == [[ids.tolist() for ids in s] for s in theirs]


def test_a_limit_holds_beyond_the_lengths_without_one():
    capacity = Capacity.table([[(32, None), (64, 6)]])
    assert capacity.limits(1, np.array([20, 32, 33, 64, 65])).tolist() == [[UNLIMITED, UNLIMITED, 6, 6, 0]]


@pytest.mark.parametrize("kind", [Capacity, PackedCapacity])
def test_what_every_rank_can_hold_is_the_least_at_each_length_that_all_were_measured_at(kind):
    measured = kind.table([[(10, 8), (20, 4)], [(12, 6), (30, 3)]])
    assert measured.least() == kind.table([[(10, 6), (12, 4), (20, 3)]])
    assert type(measured.least()) is kind
    assert kind.uniform(5).least() == kind.uniform(5)


def test_which_rank_holds_a_sample_alone():
    lengths = np.array([5, 15, 25])
    held = Capacity.table([[(10, 1)], [(20, 2)]]).hold(2, lengths)
    assert held.tolist() == [[True, False, False], [True, True, False]]
    assert PackedCapacity.uniform(9).hold(2, np.array([9, 10])).tolist() == [[True, False]] * 2


def test_rows_hold_the_tokens_of_the_micro_batches_that_were_measured():
    measured = [[(4, 3), (8, 1), (9, None)]]
    assert capacity_of(measured, "padded") == Capacity.table(measured)
    assert capacity_of(measured, "packed") == PackedCapacity.table([[(4, 12), (8, 8), (9, None)]])
    assert capacity_of([[(4, None)]], "flattened") == PackedCapacity.table([[(4, None)]])

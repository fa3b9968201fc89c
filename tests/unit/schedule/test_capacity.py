"""Tables of capacities: what holds at which length and rank, and what follows from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import plain, plans_of

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import UNLIMITED, Capacity, PackedCapacity, capacity_of
from dynbench.schedule.policy import Problem, policy_class

TABLE = [(128, 4), (32, 16), (64, 8)]


def test_without_arguments_nothing_is_limited():
    assert Capacity().unlimited
    assert not Capacity.table([[(32, None)]]).unlimited
    assert Capacity().limit(3, 10**6) == UNLIMITED


def test_one_number_holds_for_every_length_of_every_rank_or_of_one():
    capacity = Capacity.uniform(7)
    assert capacity.limits(3, np.array([1, 500])).tolist() == [[7, 7]] * 3
    assert capacity.equal(3)
    assert not capacity.unlimited
    capacity = Capacity.per_rank([4, 8])
    assert [capacity.limit(rank, 100) for rank in (0, 1)] == [4, 8]
    assert capacity.limits(2, np.array([1, 100])).tolist() == [[4, 4], [8, 8]]
    assert not capacity.equal(2)
    assert Capacity.per_rank([5, 5]).equal(2)


@pytest.mark.parametrize(
    ("table", "length", "limit"),
    [
        *((TABLE, *pair) for pair in [(1, 16), (32, 16), (33, 8), (64, 8), (65, 4), (128, 4), (129, 0)]),
        ([(32, 4), (64, 6)], 64, 4),  # lowered to that of a shorter length
        *(([(32, None), (64, 6)], *pair) for pair in [(20, UNLIMITED), (32, UNLIMITED), (33, 6), (64, 6), (65, 0)]),
    ],
)
def test_between_two_lengths_the_longer_ones_limit_holds(table, length, limit):
    capacity = Capacity.table([table])
    assert capacity.limit(0, length) == limit
    assert capacity.limits(1, np.array([length])).tolist() == [[limit]]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6),
    st.lists(st.integers(1, 80), min_size=1),
)
def test_limits_never_rise_with_length_and_agree_with_limit(row, lengths):
    capacity, lengths = Capacity.table([row]), np.sort(np.array(lengths))
    limits = capacity.limits(2, lengths)
    assert (np.diff(limits, axis=1) <= 0).all()
    assert limits[1].tolist() == [capacity.limit(1, int(length)) for length in lengths]


@pytest.mark.parametrize(("make", "given_number", "said"), [
    (Capacity.uniform, 0, "schedule.capacity: 0 samples at length"),
    (Capacity.per_rank, [4, 0], r"schedule.capacity\[1\]: 0 samples at length"),
    (PackedCapacity.uniform, 0, "schedule.capacity: 0 tokens at length"),
    (PackedCapacity.per_rank, [0], r"schedule.capacity\[0\]: 0 tokens at length"),
])  # fmt: skip
def test_what_is_refused_is_named_in_its_unit(make, given_number, said):
    with pytest.raises(UsageError, match=f"^{said}"):
        make(given_number)


@pytest.mark.parametrize("policy", [name for name in POLICIES if POLICIES[name].missing is None])
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 0.5])], ids=["equal", "unequal"])
def test_where_no_limit_was_found_plans_are_those_without_limits(policy, speeds):
    layout = POLICIES[policy].layouts[0]
    kind = Capacity if layout == "padded" else PackedCapacity
    lengths = np.random.default_rng(0).integers(2, 60, size=300)
    same = {"speeds": speeds, "window": 3 if policy_class(policy).level == "window" else 1, "layout": layout}
    probed, free = (
        [plain(plan) for plan in plans_of(policy, Problem(lengths, 2, 40, capacity=capacity, buffer=40, **same), 4)]
        for capacity in (kind.table([[(32, None), (64, None)]]), kind())
    )
    assert probed == free


@pytest.mark.parametrize("kind", [Capacity, PackedCapacity])
def test_what_every_rank_can_hold_is_the_least_at_each_length_that_all_were_measured_at(kind):
    measured = kind.table([[(10, 8), (20, 4)], [(12, 6), (30, 3)]])
    assert measured.least() == kind.table([[(10, 6), (12, 4), (20, 3)]])
    assert type(measured.least()) is kind
    assert kind.uniform(5).least() == kind.uniform(5)


def test_which_rank_holds_a_sample_alone():
    held = Capacity.table([[(10, 1)], [(20, 2)]]).hold(2, np.array([5, 15, 25]))
    assert held.tolist() == [[True, False, False], [True, True, False]]
    assert PackedCapacity.uniform(9).hold(2, np.array([9, 10])).tolist() == [[True, False]] * 2


def test_rows_hold_the_tokens_of_the_micro_batches_that_were_measured():
    measured = [[(4, 3), (8, 1), (9, None)]]
    assert capacity_of(measured, "padded") == Capacity.table(measured)
    assert capacity_of(measured, "packed") == PackedCapacity.table([[(4, 12), (8, 8), (9, None)]])
    assert capacity_of([[(4, None)]], "flattened") == PackedCapacity.table([[(4, None)]])

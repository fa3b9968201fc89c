"""Tables of capacities, and what the scheduler says of work that cannot be planned, word for word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import first_plan, plain, plans_of, problem_of

from dynbench.errors import DynbenchError, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.sampler import whole_lengths
from dynbench.schedule.capacity import UNLIMITED, Capacity, PackedCapacity, capacity_of
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Problem, make_policy, policy_class
from dynbench.schedule.prefix_counts import check_enumerable
from dynbench.schedule.traces import Trace, load_trace

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


TRACE = Trace("t", np.array([1, 2]), "here")
SHORT = Capacity.table([[(40, 4)]])
SECOND_HOLDS = Capacity.table([[(8, 4)], [(20, 4)]])
CUT = "Lower workload.max_length, or probe capacities at this length."
LEAST = "Lengths and capacities are at least 1."
ONE_EACH = "Give one positive number per rank."


def problem(lengths: tuple[int, ...] = (5, 6, 50, 7), workers: int = 2, **changes: object) -> Problem:
    return problem_of(lengths, workers, **changes)


REFUSED: dict[tuple[str, str], Callable[[], object]] = {
    ("no samples to plan", "The data is empty."): lambda: problem((), batch=2),
    ("sample 2: length 0", "Lengths are at least 1 token."): lambda: problem((3, 4, 0)),
    (
        "train.global_batch: 4 is less than the 5 ranks",
        "Every rank needs a sample: use at least 5.",
    ): lambda: problem(workers=5),
    (
        "schedule.capacity: 3 capacities for 2 ranks",
        "Give one number, or one per rank.",
    ): lambda: problem(capacity=Capacity.per_rank([4, 4, 4])),
    (
        "schedule.capacity: in tokens, with micro-batches that are padded",
        "Padded ones are limited in samples (Capacity), packed rows in tokens (PackedCapacity).",
    ): lambda: problem(capacity=PackedCapacity.uniform(9)),
    ("schedule.speeds: [1.0] for 2 ranks", ONE_EACH): lambda: problem(speeds=np.array([1.0])),
    ("schedule.speeds: [1.0, 0.0] for 2 ranks", ONE_EACH): lambda: problem(speeds=np.array([1.0, 0.0])),
    (
        "schedule.capacity[1]: no length was found to fit",
        "Probe again with shorter lengths or more memory.",
    ): lambda: Capacity.table([[(8, 1)], []]),
    ("schedule.capacity[0]: 4 samples at length 0", LEAST): lambda: capacity_of([[(0, 4)]], "padded"),
    (
        "workload.layout: 'packed' makes no sense under policy 'window'",
        "Plan with static or partition or token_budget, or leave the layout out.",
    ): lambda: make_policy("window", problem(layout="packed")),
    ("train.global_batch: 5 is more than the 4 samples of the data", "Use at most 4."): lambda: DataOrder(4, 5),
    (
        "schedule.buffer: 3 ranks of 2 samples hold less than train.global_batch 7",
        "Use a buffer of at least 3, or a global batch of at most 6.",
    ): lambda: make_policy("prefix", problem((5,) * 7, 3, buffer=2)),
    (
        "schedule.solver: enumerate would try more than 2,000,000 plans",
        "Use solver=exact, or fewer ranks, a smaller global batch or buffer.",
    ): lambda: check_enumerable(np.full(12, 20), 60),
    (
        "schedule.cost_type: 'token' is not a cost type. Did you mean 'tokens'?",
        "Known: tokens, tokens_sq, attention, measured.",
    ): lambda: CostModel("token"),  # type: ignore[arg-type]  # what a user may write
    (
        "sst3: no such trace file or distribution. Did you mean 'sst2'?",
        "Give a file (.parquet, .csv, .jsonl, .txt, .npy) or one of sst2, gsm8k, lognormal.",
    ): lambda: load_trace("sst3"),
    ("--max-length 0: a sample has at least 1 token", "Give a positive number."): lambda: TRACE.cut(0),
}
TOO_LONG = [
    ("partition", (5, 6, 50, 7), {"capacity": SHORT}, "2 of 50", "any rank"),
    ("static", (5, 6, 50, 7), {"capacity": SHORT}, "2 of 50", "rank 0"),
    ("prefix", (5, 50, 6, 7), {"capacity": SHORT, "buffer": 2}, "1 of 50", "rank 1"),
    ("partition", (9, 15, 12), {"capacity": SECOND_HOLDS}, "0 of 9", "rank 0"),
]


@pytest.mark.parametrize("said", REFUSED, ids=lambda said: said[0])
def test_what_cannot_be_is_a_line_with_what_to_do(said: tuple[str, str]) -> None:
    with pytest.raises(DynbenchError) as caught:
        REFUSED[said]()
    assert (type(caught.value), caught.value.message, caught.value.hint) == (UsageError, *said)


@pytest.mark.parametrize(("policy", "lengths", "changes", "sample", "rank"), TOO_LONG)
def test_a_sample_that_does_not_fit_is_named_with_its_rank(
    policy: str, lengths: tuple[int, ...], changes: dict[str, object], sample: str, rank: str
) -> None:
    with pytest.raises(NothingFits) as caught:
        first_plan(policy, problem(lengths, **changes))
    said = f"step 0: sample {sample} padded tokens is longer than the capacity of {rank} allows (0 fit)"
    assert (caught.value.message, caught.value.hint) == (said, CUT)


def test_what_is_just_within_its_limits_is_taken() -> None:
    assert problem(workers=4, speeds=np.array([1e-9, 1, 1, 1])).workers == 4
    assert DataOrder(5, 5).steps_per_epoch == 1
    assert TRACE.cut(1).lengths.tolist() == [1, 1]


@pytest.mark.parametrize("given", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], dtype=np.uint8)], ids=type)
def test_whole_numbers_of_any_type_are_lengths_that_sums_of_squares_do_not_overflow(given: object) -> None:
    lengths = whole_lengths(given)
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.dtype == np.int64

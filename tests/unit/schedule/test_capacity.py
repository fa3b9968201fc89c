"""Tables of capacities, and what the scheduler says of work that cannot be planned, word for word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import first_plan, problem_of

from dynbench.errors import BatchTooLarge, DynbenchError, NothingFits, UsageError
from dynbench.sampler import whole_lengths
from dynbench.schedule.capacity import UNLIMITED, Capacity, PackedCapacity, capacity_of
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.solve import SolveRequest, solve
from dynbench.schedule.traces import Trace, load_trace


def test_one_number_holds_for_every_length_of_every_rank_or_of_one():
    assert Capacity().unlimited and Capacity().limit(3, 10**6) == UNLIMITED
    assert not Capacity.table([[(32, None)]]).unlimited
    for capacity, limits in ((Capacity.uniform(7), [7, 7]), (Capacity.per_rank([4, 8]), [4, 8])):
        assert capacity.limits(2, np.array([1, 500])).T.tolist() == [limits] * 2
        assert [capacity.limit(rank, 100) for rank in (0, 1)] == limits
        assert capacity.equal(2) == (limits == [7, 7])
    assert Capacity.per_rank([5, 5]).equal(2)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40) | st.none()), min_size=1, max_size=6),
    st.lists(st.integers(1, 80), min_size=1),
)
def test_between_two_lengths_the_longer_ones_limit_holds_lowered_to_those_of_shorter_ones(row, lengths):
    capacity = Capacity.table([row])
    for length, limit in zip(lengths, capacity.limits(2, np.array(lengths))[1].tolist(), strict=True):
        step = min((known for known, _ in row if known >= length), default=0)
        assert limit == min((most or UNLIMITED for known, most in row if known <= step), default=0)
        assert limit == capacity.limit(1, length)


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
LAST_HOLDS = Capacity.table([[(8, 4)], [(8, 4)], [(20, 4)]])
CUT = "Lower workload.max_length, or probe capacities at this length."
LEAST = "Lengths and capacities are at least 1."
ONE_EACH = "Give one positive number per rank."
FOUR = "Give one number from 0 on for each of the 4 samples."
CUT_TRACE = "Cut it with --max-length, or probe capacities at this length."
ROW = "Lower workload.max_length, or raise schedule.capacity (tokens per row)."
SPLIT = "static, partition, window and transformers' samplers can; or use micro_batches=1."
FROM_0 = "Give tokens per unit, from 0 on."


SAMPLES = (5, 6, 50, 7)


def problem(lengths: tuple[int, ...] = SAMPLES, workers: int = 2, **changes: object) -> Problem:
    return problem_of(lengths, workers, **changes)


def too_long(sample: str, rank: str) -> tuple[str, str]:
    return f"step 0: sample {sample} padded tokens is longer than the capacity of {rank} allows (0 fit)", CUT


def too_many(samples: int, fit: int, split: str = ", or set schedule.micro_batches=auto") -> tuple[str, str]:
    return (
        f"step 0: {samples} samples do not fit into the ranks' capacities at their lengths",
        f"Of this step's samples {fit} fit, of other steps' maybe fewer: lower the global batch{split}.",
    )


def too_many_tokens(samples: int, rows: int) -> tuple[str, str]:
    return (
        f"step 0: {samples} samples of {30 * samples} tokens do not fit into {rows} packed rows within the capacities",
        "Lower the global batch, or set schedule.micro_batches=auto.",
    )


def planning(policy: str, *lengths: int, **changes: object) -> Callable[[], object]:
    return lambda: first_plan(policy, problem(lengths or SAMPLES, **changes))


def rows_of_40(*lengths: int, policy: str = "partition", **changes: object) -> Callable[[], object]:
    return planning(policy, *lengths, capacity=PackedCapacity.uniform(40), layout="packed", **changes)


def fives(number: int, most: Capacity, policy: str = "partition", **changes: object) -> Callable[[], object]:
    return planning(policy, *[5] * number, capacity=most, **changes)


def solving(**changes: object) -> Callable[[], object]:
    trace = Trace("t", np.array([5, 50, 6, 7]), "here")
    return lambda: solve(SolveRequest((trace,), (2,), lambda lengths, ranks: problem_of(lengths, ranks, **changes)))


REFUSED: dict[tuple[str, str], Callable[[], object]] = {
    ("no samples to plan", "The data is empty."): lambda: problem((), batch=2),
    ("sample 2: length 0", "Lengths are at least 1 token."): lambda: problem((3, 4, 0)),
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
    (f"schedule.capacity: 0 tokens at length {UNLIMITED}", LEAST): lambda: PackedCapacity.uniform(0),
    (f"schedule.capacity[1]: 0 samples at length {UNLIMITED}", LEAST): lambda: Capacity.per_rank([4, 0]),
    ("second: shape (2,), from 0 on", FOUR): lambda: problem(second=np.array([1, 2])),
    ("second: shape (4,), from -2 on", FOUR): lambda: problem(second=np.array([1, -2, 3, 4])),
    ("schedule.second_weight: -1.0", FROM_0): lambda: problem(second_weight=-1.0),
    ("schedule.second_weight: inf", FROM_0): lambda: problem(second_weight=float("inf")),
    (
        "torchtitan cuts samples into pieces, of which no second number is known",
        "Leave the second column out, or plan with packed, trl or axolotl.",
    ): planning("torchtitan", layout="packed", second=np.arange(4)),
    (
        "workload.layout: 'packed' makes no sense under policy 'window'",
        "Plan with static or partition or token_budget, or leave the layout out.",
    ): planning("window", layout="packed"),
    ("train.global_batch: 5 is more than the 4 samples of the data", "Use at most 4."): lambda: DataOrder(4, 5),
    (
        "schedule.buffer: 3 ranks of 2 samples hold less than train.global_batch 7",
        "Use a buffer of at least 3, or a global batch of at most 6.",
    ): lambda: make_policy("prefix", problem((5,) * 7, 3, buffer=2)),
    (
        "schedule.solver: enumerate would try more than 2,000,000 plans",
        "Use solver=exact, or fewer ranks, a smaller global batch or buffer.",
    ): lambda: make_policy("prefix", problem((5,) * 60, 12, batch=60, buffer=20, solver="enumerate")),
    (
        "schedule.cost_type: 'token' is not a cost type. Did you mean 'tokens'?",
        "Known: tokens, tokens_sq, attention, measured.",
    ): lambda: CostModel("token"),  # type: ignore[arg-type]  # what a user may write
    (
        "sst3: no such trace file or distribution. Did you mean 'sst2'?",
        "Give a file (.parquet, .csv, .jsonl, .txt, .npy) or one of sst2, gsm8k, lognormal.",
    ): lambda: load_trace("sst3"),
    ("--max-length 0: a sample has at least 1 token", "Give a positive number."): lambda: TRACE.cut(0),
    too_long("2 of 50", "any rank"): planning("partition", capacity=SHORT),
    too_long("2 of 50", "rank 0"): planning("static", capacity=SHORT),
    too_long("1 of 50", "rank 1"): planning("prefix", 5, 50, 6, 7, capacity=SHORT, buffer=2),
    too_long("1 of 50", "any rank"): planning("partition", 5, 50, 6, 7, capacity=SHORT, micro_batches=2),
    too_long("2 of 30", "any rank"): planning("partition", 9, 15, 30, capacity=SECOND_HOLDS),
    too_many(5, 4): fives(5, Capacity.uniform(2)),
    too_many(9, 8): fives(9, Capacity.uniform(2), micro_batches=2),
    too_many(4, 2): fives(4, Capacity.uniform(1), "static"),
    too_many(5, 4, ""): fives(5, Capacity.uniform(1), micro_batches="auto", objective="slots"),
    too_many(5, 3, ""): fives(5, Capacity.per_rank([2, 1])),
    too_many(4, 2, ""): fives(4, Capacity.uniform(1), "prefix", buffer=2),
    too_many_tokens(3, 2): rows_of_40(30, 30, 30),
    too_many_tokens(5, 4): rows_of_40(*[30] * 5, micro_batches=2),
    too_many_tokens(5, 2): rows_of_40(*[30] * 9, micro_batches=2),
    too_many_tokens(9, 4): rows_of_40(*[30] * 9, micro_batches=2, objective="slots"),
    too_many_tokens(7, 2): rows_of_40(*[30] * 7, micro_batches="auto", objective="slots"),
    too_many_tokens(2, 1): rows_of_40(*[30] * 4, policy="static"),
    ("step 0: sample 1 of 50 tokens is longer than a packed row of any rank may be", ROW): rows_of_40(5, 50, 6, 7),
    ("schedule.micro_batches: 2 with policy 'prefix'", SPLIT): planning("prefix", micro_batches=2),
    (
        "schedule.micro_batches: 2 with ranks of unequal capacity",
        "Use micro_batches=1, or the least capacity.",
    ): fives(4, Capacity.per_rank([4, 3]), micro_batches=2),
    (
        "schedule.micro_batches: 3 on each of 2 ranks for 4 samples",
        "Use at most 2, or a train.global_batch of at least 6.",
    ): fives(4, Capacity(), micro_batches=3),
    ("train.global_batch: 1 is less than the 2 ranks", "Every rank needs a sample: use at least 2."): fives(
        1, Capacity()
    ),
    ("train.global_batch: 5 is not a multiple of the 2 ranks", "verl deals equal counts."): fives(
        5, PackedCapacity(), "verl", layout="packed"
    ),
    ("nothing to solve", "Name a trace and a world size."): lambda: solve(SolveRequest((), (2,), problem_of)),
    (
        "here: sample 1 of 50 padded tokens is longer than any rank's capacity allows (at most 40 tokens)",
        CUT_TRACE,
    ): solving(capacity=SHORT),
    (
        "here: sample 1 of 50 packed tokens is longer than any rank's capacity allows (at most 30 tokens)",
        CUT_TRACE,
    ): solving(capacity=PackedCapacity.table([[(50, 30)]]), layout="packed"),
    ("train.global_batch: 5 is not a multiple of the 2 ranks, as static needs", "Use 4 or 6."): fives(
        5, Capacity(), "static"
    ),
    (
        "--second-column: 'x' is no column of sst2, a distribution of lengths alone",
        "Name a trace file that has it, or leave it out.",
    ): lambda: load_trace("sst2", second_column="x"),
    too_long("0 of 9", "rank 0"): planning("partition", 9, 15, 12, capacity=SECOND_HOLDS),
    # The fastest of those that hold nothing.
    too_long("2 of 9", "rank 1"): planning(
        "partition", 15, 12, 9, workers=3, capacity=LAST_HOLDS, speeds=np.array([1.0, 2.0, 3.0])
    ),
}


@pytest.mark.parametrize("said", REFUSED, ids=lambda said: said[0])
def test_what_cannot_be_is_a_line_with_what_to_do(said: tuple[str, str]) -> None:
    with pytest.raises(DynbenchError) as caught:
        REFUSED[said]()
    kind = BatchTooLarge if "do not fit" in said[0] else NothingFits if said[1] in (CUT, CUT_TRACE, ROW) else UsageError
    assert (type(caught.value), caught.value.message, caught.value.hint) == (kind, *said)


def test_what_is_just_within_its_limits_is_taken() -> None:
    assert problem(workers=4, speeds=np.array([1e-9, 1, 1, 1])).workers == 4
    assert DataOrder(5, 5).steps_per_epoch == 1
    assert TRACE.cut(1).lengths.tolist() == [1, 1]


@pytest.mark.parametrize("given", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], dtype=np.uint8)], ids=type)
def test_whole_numbers_of_any_type_are_lengths_that_sums_of_squares_do_not_overflow(given: object) -> None:
    lengths = whole_lengths(given)
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.dtype == np.int64

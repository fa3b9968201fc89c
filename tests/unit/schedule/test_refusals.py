"""What the scheduler says of work that cannot be planned, word for word: what, where, how much, and what to do."""

from collections.abc import Callable

import numpy as np
import pytest

from dynbench.errors import BatchTooLarge, DynbenchError, NothingFits, UsageError
from dynbench.sampler import asked_capacity, cost_model, whole, whole_lengths
from dynbench.schedule.capacity import Capacity, PackedCapacity, capacity_of
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.prefix_counts import check_enumerable
from dynbench.schedule.traces import Trace, load_trace

SHORT = Capacity.table([[(40, 4)]])


def problem(lengths=(5, 6, 50, 7), workers=2, **changes) -> Problem:
    batch = changes.pop("batch", len(lengths))
    return Problem(np.array(lengths, dtype=np.int64), workers, batch, **{"order": "file", **changes})


def plan(policy: str, lengths=(5, 6, 50, 7), workers: int = 2, **changes) -> object:
    return next(make_policy(policy, problem(lengths, workers, **changes)).plans())


LONGER = "step 0: sample 2 of 50 padded tokens is longer than the capacity of {} allows (0 fit)"
CUT = "Lower workload.max_length, or probe capacities at this length."
FIT = "Of this step's samples {} fit, of other steps' maybe fewer: lower the global batch{}."
SPLIT = ", or set schedule.micro_batches=auto"
NOT_HELD = "step 0: {} samples do not fit into the ranks' capacities at their lengths"
ROW = "step 0: sample 2 of 50 tokens is longer than a packed row of {} may be"
SHORTER = "Lower workload.max_length, or raise schedule.capacity (tokens per row)."
FEWER = "Lower the global batch, or set schedule.micro_batches=auto."
LEAST = "Lengths and capacities are at least 1."
ONE_EACH = "Give one positive number per rank."
TOGETHER = "static, partition, window and transformers' samplers can; or use micro_batches=1."

CASES: dict[str, tuple[Callable[[], object], type[DynbenchError], str, str]] = {
    "no samples": (lambda: problem((), batch=2), UsageError, "no samples to plan", "The data is empty."),
    "a length of none": (
        lambda: problem((3, 4, 0)),
        UsageError,
        "sample 2: length 0",
        "Lengths are at least 1 token.",
    ),
    "a batch below the ranks": (
        lambda: problem(workers=5),
        UsageError,
        "train.global_batch: 4 is less than the 5 ranks",
        "Every rank needs a sample: use at least 5.",
    ),
    "capacities of other ranks": (
        lambda: problem(capacity=Capacity.per_rank([4, 4, 4])),
        UsageError,
        "schedule.capacity: 3 capacities for 2 ranks",
        "Give one number, or one per rank.",
    ),
    "capacities of the other layout": (
        lambda: problem(capacity=PackedCapacity.uniform(9)),
        UsageError,
        "schedule.capacity: in tokens, with micro-batches that are padded",
        "Padded ones are limited in samples (Capacity), packed rows in tokens (PackedCapacity).",
    ),
    "speeds of other ranks": (
        lambda: problem(speeds=np.array([1.0])),
        UsageError,
        "schedule.speeds: [1.0] for 2 ranks",
        ONE_EACH,
    ),
    "a speed of none": (
        lambda: problem(speeds=np.array([1.0, 0.0])),
        UsageError,
        "schedule.speeds: [1.0, 0.0] for 2 ranks",
        ONE_EACH,
    ),
    "no capacity": (
        lambda: Capacity.per_rank([4, 0]),
        UsageError,
        f"schedule.capacity[1]: 0 samples at length {2**40}",
        LEAST,
    ),
    "a table of no length": (
        lambda: Capacity.table([[(8, 1)], []]),
        UsageError,
        "schedule.capacity[1]: no length was found to fit",
        "Probe again with shorter lengths or more memory.",
    ),
    "a length below one in a table": (
        lambda: capacity_of([[(0, 4)]], "padded"),
        UsageError,
        "schedule.capacity[0]: 4 samples at length 0",
        LEAST,
    ),
    "micro-batches that are not planned": (
        lambda: make_policy("prefix", problem(micro_batches=2)),
        UsageError,
        "schedule.micro_batches: 2 with policy 'prefix'",
        TOGETHER,
    ),
    "micro-batches on unequal ranks": (
        lambda: make_policy("partition", problem(micro_batches="auto", capacity=Capacity.per_rank([1, 2]))),
        UsageError,
        "schedule.micro_batches: auto with ranks of unequal capacity",
        "Use micro_batches=1, or the least capacity.",
    ),
    "more micro-batches than samples": (
        lambda: make_policy("partition", problem(micro_batches=3)),
        UsageError,
        "schedule.micro_batches: 3 on each of 2 ranks for 4 samples",
        "Use at most 2, or a train.global_batch of at least 6.",
    ),
    "more rows than samples": (
        lambda: make_policy("partition", problem(micro_batches=3, layout="packed")),
        UsageError,
        "schedule.micro_batches: 3 on each of 2 ranks for 4 samples",
        "Use at most 2.",
    ),
    "more micro-batches than static's share": (
        lambda: make_policy("static", problem(micro_batches=3)),
        UsageError,
        "schedule.micro_batches: 3 for 2 samples per rank",
        "Use at most 2.",
    ),
    "a batch that static cannot deal": (
        lambda: make_policy("static", problem(workers=3)),
        UsageError,
        "train.global_batch: 4 is not a multiple of the 3 ranks, as static needs",
        "Use 3 or 6.",
    ),
    "a layout that a policy cannot": (
        lambda: make_policy("window", problem(layout="packed")),
        UsageError,
        "workload.layout: 'packed' makes no sense under policy 'window'",
        "Plan with static or partition or token_budget, or leave the layout out.",
    ),
    "a batch beyond the data": (
        lambda: DataOrder(4, 5),
        UsageError,
        "train.global_batch: 5 is more than the 4 samples of the data",
        "Use at most 4.",
    ),
    "a long sample, equal ranks": (
        lambda: plan("partition", capacity=SHORT),
        NothingFits,
        LONGER.format("any rank"),
        CUT,
    ),
    "a long sample, unequal ranks": (
        lambda: plan("partition", capacity=Capacity.table([[(40, 4)], [(30, 4)]])),
        NothingFits,
        LONGER.format("any rank"),
        CUT,
    ),
    "a long sample, several micro-batches": (
        lambda: plan("partition", capacity=SHORT, micro_batches="auto"),
        NothingFits,
        LONGER.format("any rank"),
        CUT,
    ),
    "a long sample, static": (lambda: plan("static", capacity=SHORT), NothingFits, LONGER.format("rank 0"), CUT),
    "a long sample, prefix": (
        lambda: plan("prefix", (5, 50, 6, 7), capacity=SHORT, buffer=2),
        NothingFits,
        "step 0: sample 1 of 50 padded tokens is longer than the capacity of rank 1 allows (0 fit)",
        CUT,
    ),
    "a rank that holds nothing": (
        lambda: plan("partition", (9, 15, 12), capacity=Capacity.table([[(8, 4)], [(20, 4)]])),
        NothingFits,
        "step 0: sample 0 of 9 padded tokens is longer than the capacity of rank 0 allows (0 fit)",
        CUT,
    ),
    "a batch beyond equal ranks": (
        lambda: plan("partition", (7, 5, 5, 5, 5), capacity=Capacity.uniform(2)),
        BatchTooLarge,
        NOT_HELD.format(5),
        FIT.format(4, SPLIT),
    ),
    "a batch beyond unequal ranks": (
        lambda: plan("partition", (7, 5, 5, 5, 5), capacity=Capacity.per_rank([1, 2])),
        BatchTooLarge,
        NOT_HELD.format(5),
        FIT.format(3, ""),
    ),
    "a batch beyond so many micro-batches": (
        lambda: plan("partition", (5,) * 9, capacity=Capacity.uniform(2), micro_batches=2),
        BatchTooLarge,
        NOT_HELD.format(9),
        FIT.format(8, SPLIT),
    ),
    "a batch beyond static's ranks": (
        lambda: plan("static", (5,) * 8, capacity=Capacity.uniform(3)),
        BatchTooLarge,
        NOT_HELD.format(8),
        FIT.format(6, SPLIT),
    ),
    "a batch beyond static's unequal ranks": (
        lambda: plan("static", (5,) * 8, capacity=Capacity.per_rank([3, 4])),
        BatchTooLarge,
        NOT_HELD.format(8),
        FIT.format(6, ""),
    ),
    "a batch beyond prefix's ranks": (
        lambda: plan("prefix", (5,) * 8, capacity=Capacity.per_rank([3, 4])),
        BatchTooLarge,
        NOT_HELD.format(8),
        FIT.format(7, ""),
    ),
    "a long sample in rows": (
        lambda: plan("partition", layout="packed", capacity=PackedCapacity.uniform(49)),
        NothingFits,
        ROW.format("any rank"),
        SHORTER,
    ),
    "a long sample in static's rows": (
        lambda: plan("static", layout="packed", capacity=PackedCapacity.uniform(49)),
        NothingFits,
        ROW.format("rank 0"),
        SHORTER,
    ),
    "rows that do not hold the batch": (
        lambda: plan("partition", (9, 9, 9, 9), layout="packed", capacity=PackedCapacity.uniform(17)),
        BatchTooLarge,
        "step 0: 4 samples of 36 tokens do not fit into 2 packed rows within the capacities",
        FEWER,
    ),
    "a rank's rows that do not hold its share": (
        lambda: plan("partition", (9,) * 10, layout="packed", capacity=PackedCapacity.uniform(18), micro_batches=2),
        BatchTooLarge,
        "step 0: 5 samples of 45 tokens do not fit into 2 packed rows within the capacities",
        FEWER,
    ),
    "static's rows that do not hold a share": (
        lambda: plan("static", (9,) * 8, layout="packed", capacity=PackedCapacity.uniform(17), micro_batches=2),
        BatchTooLarge,
        "step 0: 4 samples of 36 tokens do not fit into 2 packed rows within the capacities",
        FEWER,
    ),
    "buffers below the batch": (
        lambda: make_policy("prefix", problem((5,) * 7, 3, buffer=2)),
        UsageError,
        "schedule.buffer: 3 ranks of 2 samples hold less than train.global_batch 7",
        "Use a buffer of at least 3, or a global batch of at most 6.",
    ),
    "plans beyond counting": (
        lambda: check_enumerable(np.full(12, 20), 60),
        UsageError,
        "schedule.solver: enumerate would try more than 2,000,000 plans",
        "Use solver=exact, or fewer ranks, a smaller global batch or buffer.",
    ),
    "a cost type that is none": (
        lambda: CostModel("token"),  # type: ignore[arg-type]  # what a user may write
        UsageError,
        "schedule.cost_type: 'token' is not a cost type. Did you mean 'tokens'?",
        "Known: tokens, tokens_sq, attention, measured.",
    ),
    "lengths that are no whole numbers": (
        lambda: whole_lengths([1.5, 2.0]),
        UsageError,
        "lengths: shape (2,) of float64",
        "Give one whole number per sample.",
    ),
    "lengths of several columns": (
        lambda: whole_lengths([[1, 2], [3, 4]]),
        UsageError,
        "lengths: shape (2, 2) of int64",
        "Give one whole number per sample.",
    ),
    "no number": (lambda: whole("rank", "1", 0), UsageError, "rank: '1'", "Give a whole number of at least 0."),
    "a number too small": (lambda: whole("rank", -1, 0), UsageError, "rank: -1", "Give a whole number of at least 0."),
    "a number too large": (lambda: whole("rank", 4, 0, 3), UsageError, "rank: 4", "Give a whole number from 0 to 3."),
    "a cost without coefficients": (
        lambda: cost_model("measured"),
        UsageError,
        "cost: 'measured' says no coefficients",
        "Give CostModel('measured', alpha=…, beta=…, gamma=…); dynbench probe fits them.",
    ),
    "a capacity of none": (
        lambda: asked_capacity([3, 0], "partition", "padded"),
        UsageError,
        "capacity[1]: 0",
        "Give a whole number of at least 1.",
    ),
    "a capacity that is no number": (
        lambda: asked_capacity(2.5, "partition", "padded"),  # type: ignore[arg-type]  # what a user may write
        UsageError,
        "capacity: 2.5",
        "Give a whole number of at least 1.",
    ),
    "a capacity that a policy obeys not": (
        lambda: asked_capacity(3, "lpt", "padded"),
        UsageError,
        "capacity: policy 'lpt' obeys no capacities",
        "Leave capacity out, or use one of static, partition, window, prefix.",
    ),
    "a trace that is not there": (
        lambda: load_trace("sst3"),
        UsageError,
        "sst3: no such trace file or distribution. Did you mean 'sst2'?",
        "Give a file (.parquet, .csv, .jsonl, .txt, .npy) or one of sst2, gsm8k, lognormal.",
    ),
    "a cut to nothing": (
        lambda: Trace("t", np.array([1, 2]), "here").cut(0),
        UsageError,
        "--max-length 0: a sample has at least 1 token",
        "Give a positive number.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_line_with_what_to_do(case: str) -> None:
    refused, kind, message, hint = CASES[case]
    with pytest.raises(DynbenchError) as caught:
        refused()
    assert (type(caught.value), caught.value.message, caught.value.hint) == (kind, message, hint)


def test_what_is_just_within_its_limits_is_taken() -> None:
    assert problem(workers=4, speeds=np.array([1e-9, 1, 1, 1])).workers == 4
    assert DataOrder(5, 5).steps_per_epoch == 1
    assert whole("rank", 3, 0, 3) == 3
    assert whole("rank", np.int32(0), 0) == 0
    assert asked_capacity(3, "partition", "padded").limits(2, np.array([9])).tolist() == [[3], [3]]
    assert asked_capacity((3, 4), "partition", "packed") == PackedCapacity.per_rank([3, 4])
    assert asked_capacity(np.array([3, 4]), "partition", "padded") == Capacity.per_rank([3, 4])
    assert asked_capacity(None, "lpt", "padded").unlimited
    assert asked_capacity(Capacity.uniform(2), "static", "padded") == Capacity.uniform(2)
    assert cost_model("attention") == CostModel("attention")
    assert cost_model(paid := CostModel("measured", alpha=2.0)) is paid
    assert Trace("t", np.array([1, 2]), "here").cut(1).lengths.tolist() == [1, 1]

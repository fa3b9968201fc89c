"""What the scheduler says of work that cannot be planned, word for word: what, where, how much, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dynbench.errors import DynbenchError, NothingFits, UsageError
from dynbench.sampler import cost_model, given_capacity, known_policies, whole, whole_lengths
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
    "no number": (lambda: whole("rank", "1", 0), UsageError, "rank: '1'", "Give a whole number of at least 0."),
    "a number too large": (lambda: whole("rank", 4, 0, 3), UsageError, "rank: 4", "Give a whole number from 0 to 3."),
    "a cost without coefficients": (
        lambda: cost_model("measured"),
        UsageError,
        "cost: 'measured' says no coefficients",
        "Give CostModel('measured', alpha=…, beta=…, gamma=…); dynbench probe fits them.",
    ),
    "a capacity of none": (
        lambda: given_capacity([3, 0], "partition", "padded"),
        UsageError,
        "capacity[1]: 0",
        "Give a whole number of at least 1.",
    ),
    "a capacity that is no number": (
        lambda: given_capacity(2.5, "partition", "padded"),  # type: ignore[arg-type]  # what a user may write
        UsageError,
        "capacity: 2.5",
        "Give a whole number of at least 1.",
    ),
    "a capacity that a policy obeys not": (
        lambda: given_capacity(3, "lpt", "padded"),
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
    assert given_capacity(3, "partition", "padded").limits(2, np.array([9])).tolist() == [[3], [3]]
    assert given_capacity((3, 4), "partition", "packed") == PackedCapacity.per_rank([3, 4])
    assert given_capacity(np.array([3, 4]), "partition", "padded") == Capacity.per_rank([3, 4])
    assert given_capacity(None, "lpt", "padded").unlimited
    assert given_capacity(Capacity.uniform(2), "static", "padded") == Capacity.uniform(2)
    assert cost_model("attention") == CostModel("attention")
    assert cost_model(paid := CostModel("measured", alpha=2.0)) is paid
    assert Trace("t", np.array([1, 2]), "here").cut(1).lengths.tolist() == [1, 1]


@pytest.mark.parametrize("given", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], dtype=np.uint8)])
def test_whole_numbers_of_any_type_are_lengths_that_sums_of_squares_do_not_overflow(given):
    lengths = whole_lengths(given)
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.dtype == np.int64


def test_a_sampler_takes_policies_that_know_no_capacities_too_and_names_those_that_do_if_asked():
    every, capped = known_policies(), known_policies(capped=True)
    assert set(capped) < set(every)
    assert {"static", "partition", "window", "prefix"} <= set(capped)
    assert "lpt" in every and "lpt" not in capped

"""What a rank writes for every step: the record that `train` and `analyze` share, and nothing else.

Times are wall-clock milliseconds, memory is MB (1e6 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1
HASH_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Of splitmix64: what its states are apart."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One rank's view of one optimizer step; field order is column order."""

    step: int
    """Optimizer step, counted from 0, warm-up included."""
    rank: int
    """The rank, from 0."""
    warmup: int
    """1 while warming up, else 0."""
    policy: str
    """Name of the policy."""
    local_batch: int
    """Samples of this rank in this step."""
    micro_batches: int
    """Micro-batches of this rank in this step."""
    max_seq_len_in_batch: int
    """Longest padded length over the rank's micro-batches, of packed rows the longest sample; tokens."""
    real_tokens: int
    """Tokens of this rank's samples without padding."""
    padded_tokens: int
    """Sum over the rank's micro-batches of samples times padded length; of packed rows their real tokens."""
    real_tokens2: int
    """Sum over this rank's samples of the length squared; tokens squared."""
    padded_tokens2: int
    """Sum over the rank's micro-batches of samples times the padded length squared, of packed rows as real_tokens2;
    tokens squared."""
    plan_ms: float
    """Making the plan."""
    data_ms: float
    """Making the batch from it."""
    forward_ms: float
    """Forward passes, the loss included."""
    backward_ms: float
    """Ends when the rank's last gradient is ready."""
    sync_ms: float
    """From there until all gradients are synchronised: transfer plus wait."""
    optimizer_ms: float
    """The optimizer's step."""
    compute_ms: float
    """forward_ms + backward_ms."""
    step_time_ms: float
    """The whole step: plan, data, compute, sync, optimizer and what is between them."""
    peak_mem_mb: float | None
    """Largest memory in the step: allocated on a GPU, resident on a CPU; empty where it cannot be told apart from that
    of other arms in the process."""
    reserved_mem_mb: float | None
    """Memory that the allocator holds on a GPU; resident at the step's end on a CPU; empty likewise."""
    loss: float
    """Mean loss over this rank's samples, each counting its weight; 0 where they weigh nothing."""
    work_hash: int
    """This rank's part of the step's hash, see `work_hash`; unsigned 64 bit."""
    skipped: int
    """1 when the loss scaler skipped the optimizer step, else 0."""
    weight: float
    """What this rank's samples count in the loss together: their number, or their target tokens."""
    layout: str = "padded"
    """Of the micro-batches: padded, or packed."""


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(StepRow))
LATER = ("real_tokens2", "padded_tokens2", "weight", "layout")
"""Columns that rows of earlier versions lack."""
MAY_BE_EMPTY = ("peak_mem_mb", "reserved_mem_mb")
"""Columns without which a row is whole."""


def work_hash(sample_ids: np.ndarray, lengths: np.ndarray) -> int:
    """Sum over samples of hash(id, length), modulo 2**64: the same whoever computes them, in any order.

    Args:
        sample_ids: shape [n], integers.
        lengths: shape [n], tokens after truncation, before padding.
    """
    with np.errstate(over="ignore"):
        bits = sample_ids.astype(np.uint64) * HASH_STEP + lengths.astype(np.uint64)
        return int(mixed(bits).sum(dtype=np.uint64))


def mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, section 4); every bit depends on all."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


PROFILE_SCHEMA_VERSION = 1
COMMUNICATION, COMPUTE = "communication", "compute"
"""Operations of a row that are none of the wire: all of these together, and what computes."""
BY_ITSELF = "past the wire"
"""Communication that no operation of the wire began."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """An operation in a phase, per step."""

    phase: str
    """forward, backward (up to the gradients' meeting), optimizer, or other."""
    operation: str
    """Of the wire; `communication` for all of them, `past the wire` for what it did not begin, or `compute`."""
    calls: float
    """How often it was under way."""
    ms: float
    """Time in which it was, overlapping ones once."""
    share: float
    """Of the step."""


@dataclass(frozen=True, slots=True)
class RankProfile:
    """A rank's profiled steps."""

    rank: int
    """The rank."""
    first_step: int
    """The first one profiled."""
    steps: int
    """Their number."""
    step_ms: float
    """How long a step was, profiled."""
    rows: list[ProfileRow]
    """What its time went to."""

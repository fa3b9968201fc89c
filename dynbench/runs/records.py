"""What a rank writes for every step: the record that `train` and `analyze` share, and nothing else.

Times are wall-clock milliseconds, memory is MB (1e6 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class StepRow:
    """One rank's view of one optimizer step; field order is column order."""

    step: int
    """Optimizer step, counted from 0, warm-up included."""
    rank: int
    warmup: int
    """1 while warming up, else 0."""
    policy: str
    local_batch: int
    """Samples of this rank in this step."""
    micro_batches: int
    max_seq_len_in_batch: int
    """Longest padded length over the rank's micro-batches, tokens."""
    real_tokens: int
    padded_tokens: int
    """Sum over the rank's micro-batches of samples times padded length."""
    plan_ms: float
    data_ms: float
    forward_ms: float
    backward_ms: float
    """Ends when the rank's last gradient is ready."""
    sync_ms: float
    """From there until all gradients are synchronised: transfer plus wait."""
    optimizer_ms: float
    compute_ms: float
    """forward_ms + backward_ms."""
    step_time_ms: float
    peak_mem_mb: float
    reserved_mem_mb: float
    loss: float
    """Mean loss over this rank's samples, unweighted."""
    work_hash: int
    """This rank's part of the step's hash, see `work_hash`; unsigned 64 bit."""
    skipped: int
    """1 when the loss scaler skipped the optimizer step, else 0."""


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(StepRow))


def work_hash(sample_ids: np.ndarray, lengths: np.ndarray) -> int:
    """Sum over samples of hash(id, length), modulo 2**64: the same whoever computes them, in any order.

    Args:
        sample_ids: shape [n], integers.
        lengths: shape [n], tokens after truncation, before padding.

    The mixing function is splitmix64 (Steele, Lea and Flood, OOPSLA 2014, section 4).
    """
    with np.errstate(over="ignore"):
        x = sample_ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + lengths.astype(np.uint64)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return int(x.sum(dtype=np.uint64))

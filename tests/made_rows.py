"""Rows of a step that took as long as it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbench.runs.records import RowWriter, StepRow, work_hash
from dynbench.runs.run import Run


def made_row(step: int, rank: int, step_ms: float, **changes: Any) -> StepRow:
    """A row of a rank that has four samples of ten tokens in every step; the first step is warm-up."""
    ids = np.arange(4) + 8 * step + 4 * rank
    given = {
        "step": step, "rank": rank, "warmup": int(step == 0), "policy": "static", "local_batch": 4, "micro_batches": 1,
        "max_seq_len_in_batch": 10, "real_tokens": 30, "padded_tokens": 40, "real_tokens2": 240,
        "padded_tokens2": 400, "plan_ms": 0.1, "data_ms": 0.1, "forward_ms": 0.3 * step_ms,
        "backward_ms": 0.3 * step_ms, "sync_ms": 0.2 * step_ms, "optimizer_ms": 1.0, "compute_ms": 0.6 * step_ms,
        "step_time_ms": step_ms, "peak_mem_mb": 1.0, "reserved_mem_mb": 1.0, "loss": 0.5, "skipped": 0, "weight": 4.0,
    }  # fmt: skip
    if "work_hash" not in changes:
        changes["work_hash"] = work_hash(ids, np.full(4, 10))
    return StepRow(**(given | changes))


def write_rows(run: Run, steps: int, step_ms: Callable[[int, int], float], **changes: Any) -> None:
    """Such rows of two ranks, each of a time by step and rank."""
    for rank in range(2):
        with RowWriter(run.rank_file(rank)) as writer:
            for step in range(steps):
                writer.write(made_row(step, rank, step_ms(step, rank), **changes))

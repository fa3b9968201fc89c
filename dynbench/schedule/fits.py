"""The errors of work that the capacities cannot hold, worded alike for every policy."""

from __future__ import annotations

from dynbench.errors import BatchTooLarge, NothingFits


def sample_too_long(step: int, sample: int, length: int, where: str = "any rank") -> NothingFits:
    """One sample is beyond the longest length that fits.

    Args:
        step: optimizer step.
        sample: its id.
        length: its padded length, tokens.
        where: who cannot hold it.
    """
    return NothingFits(
        f"step {step}: sample {sample} of {length} padded tokens is longer than the capacity of {where} allows (0 fit)",
        "Lower workload.max_length, or probe capacities at this length.",
    )


def batch_too_large(step: int, global_batch: int, largest: int, may_split: bool = True) -> BatchTooLarge:
    """The ranks' capacities together are less than the global batch, in this step; of other steps nothing is said.

    Args:
        step: optimizer step.
        global_batch: samples asked for (B).
        largest: any this many of the step's samples fit.
        may_split: whether micro-batches would help.
    """
    split = ", or set schedule.micro_batches=auto" if may_split else ""
    return BatchTooLarge(
        f"step {step}: {global_batch} samples do not fit into the ranks' capacities at their lengths",
        f"Of this step's samples {largest} fit, of other steps' maybe fewer: lower the global batch{split}.",
    )


def row_too_short(step: int, sample: int, length: int, where: str = "any rank") -> NothingFits:
    """As `sample_too_long`, of packed rows."""
    return NothingFits(
        f"step {step}: sample {sample} of {length} tokens is longer than a packed row of {where} may be",
        "Lower workload.max_length, or raise schedule.capacity (tokens per row).",
    )


def rows_too_short(step: int, samples: int, tokens: int, rows: int) -> BatchTooLarge:
    """No way was found to pack samples into so many rows; which of many are tried is a heuristic."""
    return BatchTooLarge(
        f"step {step}: {samples} samples of {tokens} tokens do not fit into {rows} packed rows within the capacities",
        "Lower the global batch, or set schedule.micro_batches=auto.",
    )

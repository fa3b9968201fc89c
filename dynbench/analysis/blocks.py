"""The time of a run: the sum, over its contiguous blocks of measured steps, of the slowest rank's time for it.

A rank's clock runs from the end of one step to the end of the next, so its steps add up to the time that passed. Ranks
do not end a step at the same moment: the sum of the steps' maxima counts such a skew twice, once as a long step of the
rank that is behind and once as a long step of the others, which wait for it in the next.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl


def number_blocks(steps: pl.DataFrame, restarts: Collection[int] = ()) -> pl.DataFrame:
    """Adds the column `block`, counted from 0: steps of one block follow each other without a break of the clock.

    A block ends where step numbers have a gap, where the warm-up ends, where the arm's turn in its launch ends, and
    after the steps `restarts`.

    Args:
        steps: one row per complete step in order of step, with `step`, `warmup` and, where it was written, `turn`.
        restarts: steps after which the ranks' clocks began anew, as after an evaluation.
    """
    previous = pl.col("step").shift()
    begins = (
        (pl.col("step") != previous + 1)
        | (pl.col("warmup") != pl.col("warmup").shift())
        | previous.is_in(list(restarts))
    )
    if "turn" in steps.columns:
        begins |= pl.col("turn") != pl.col("turn").shift()
    return steps.with_columns(block=begins.fill_null(value=False).cum_sum().cast(pl.Int32))


def block_times(ranks: Sequence[pl.DataFrame], steps: pl.DataFrame) -> pl.DataFrame:
    """Time of every block of measured steps.

    Args:
        ranks: rows of each worker, in order of step, each holding every step of `steps`.
        steps: complete steps in order, with `step`, `warmup` and `block`.

    Returns:
        Columns `block`, `first_step`, `steps` (their number), and `time_ms`, in order of `block`.
    """
    measured = steps.filter(~pl.col("warmup"))
    blocks = measured.group_by("block", maintain_order=True).agg(
        first_step=pl.col("step").first(), steps=pl.len().cast(pl.Int64)
    )
    longest = np.zeros(blocks.height)
    if blocks.height:
        numbers = measured["step"].to_numpy()
        starts = np.searchsorted(numbers, blocks["first_step"].to_numpy())
        for rows in ranks:
            places = np.searchsorted(rows["step"].to_numpy(), numbers)
            step_ms = rows["step_time_ms"].to_numpy()[places].astype(np.float64)
            longest = np.maximum(longest, np.add.reduceat(step_ms, starts))
    return blocks.with_columns(time_ms=pl.Series(longest, dtype=pl.Float64))

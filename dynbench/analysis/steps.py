"""One row per step from the rows of its ranks, and the time of contiguous blocks of measured steps.

A rank's clock runs from the end of one step to the end of the next, so its steps add up to the time that passed. Ranks
do not end a step at the same moment: the sum of the steps' maxima counts such a skew twice, once as a long step of the
rank that is behind and once as a long step of the others, which wait for it in the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import polars as pl

from dynbench.runs.records import CLIPPED, COMPRESSES, GRAD_NORM

_SPREAD_COLUMNS = ("compute_ms", "step_time_ms", "padded_tokens", "local_batch", "peak_mem_mb")
"""Columns whose standard deviation over ranks is reported."""

PHASES = ("compute_ms", "wait_ms", "exposed_comm_ms", "plan_ms", "data_ms", "optimizer_ms", "other_ms")
"""Where the time of a step goes, in the order of the figures; means over ranks, adding up to the mean over ranks."""

MERGED_COLUMNS = (
    "exposed_comm_ms",
    "global_batch",
    "step_time_max_ms",
    "loss_global",
    "throughput_samples_per_s",
    "throughput_tokens_per_s",
)
"""Columns of the step table that the merged rows carry too."""

_OPTIONAL_MEANS = (
    *("comm_ms", "comm_sum_ms", "comm_wait_ms", "comm_transfer_ms", "hidden_comm_ms", "collectives"),
    *("sync_forward_ms", "sync_backward_ms", "sync_optimizer_ms", "bytes_raw", "bytes_wire", "bytes_sent"),
    *("gradient_bytes_raw", "gradient_bytes_wire", "bytes_uncompressed"),
)
"""Columns that only some runs have."""
CODING = ("compress_ms", "decompress_ms")
"""Likewise, of runs that compress."""
ROWS_AT_ONCE = 500_000
"""Rows that are grouped at once, which takes several times their memory."""


def step_table(ranks: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, int]:
    """Aggregates the rows of all workers per step and drops incomplete steps.

    Args:
        ranks: rows of each worker, in order of step.

    Returns:
        One row per complete step in order of step, with: `warmup` (bool); `step_time_max_ms`; `exposed_comm_ms`;
        `<column>_mean`, `_max` and `_std` over ranks (population standard deviation) of `_SPREAD_COLUMNS`;
        `<phase>_mean` over ranks of `PHASES`; `wait_max_ms`; `plan_max_ms`; `real_tokens`, `padded_tokens`,
        `real_tokens2`, `global_batch` (sums over ranks); `longest` (maximum of `max_seq_len_in_batch`); `loss_global`
        (by weight, null where nothing weighs); `work_hash` (sum modulo 2**64); `skipped` (bool); throughputs;
        means over ranks of `_OPTIONAL_MEANS` and `CODING`, `turn`, and `compresses` and `clipped` (bool), where the run
        has them; `finite` (bool): every rank's loss is, and the norm of the gradient where it is known. And the number
        of steps dropped.
    """
    parts = (rows.group_by("step").agg(*_aggregates(rows.columns)).sort("step") for rows in _slices(ranks))
    grouped = pl.concat(parts, rechunk=True)
    complete = grouped.filter(pl.col("ranks") == len(ranks))
    return complete.with_columns(_derived()).with_columns(_other()), grouped.height - complete.height


def _slices(ranks: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """All rows of some steps, `ROWS_AT_ONCE` or so, and of those that follow."""
    firsts = max(ranks, key=len)["step"].gather_every(max(ROWS_AT_ONCE // len(ranks), 1))
    bounds = [[0, *rows["step"].search_sorted(firsts[1:]), len(rows)] for rows in ranks]
    for part in range(len(firsts)):
        slices = (rows[at[part] : at[part + 1]] for rows, at in zip(ranks, bounds, strict=True))
        yield pl.concat(slices, how="diagonal_relaxed", rechunk=False)


def _aggregates(columns: Sequence[str]) -> list[pl.Expr]:
    ms = {name: pl.col(name).cast(pl.Float64) for name in ("sync_ms", "plan_ms", "data_ms", "optimizer_ms")}
    samples, weight = pl.col("local_batch").cast(pl.Int64), pl.col("weight")
    exposed = ms["sync_ms"].min()
    expressions = [
        pl.len().alias("ranks"),
        (pl.col("warmup") > 0).any().alias("warmup"),
        pl.col("policy").first(),
        exposed.alias("exposed_comm_ms"),
        exposed.alias("exposed_comm_ms_mean"),
        (ms["sync_ms"].mean() - exposed).alias("wait_ms_mean"),
        (ms["sync_ms"].max() - exposed).alias("wait_max_ms"),
        ms["plan_ms"].max().alias("plan_max_ms"),
        *(ms[name].mean().alias(f"{name}_mean") for name in ("plan_ms", "data_ms", "optimizer_ms")),
        pl.col("real_tokens").cast(pl.Int64).sum(),
        pl.col("padded_tokens").cast(pl.Int64).sum(),
        pl.col("real_tokens2").sum(),
        samples.sum().alias("global_batch"),
        pl.col("max_seq_len_in_batch").max().alias("longest"),
        pl.when(weight.sum() > 0).then((pl.col("loss") * weight).sum() / weight.sum()).alias("loss_global"),
        pl.col("work_hash").sum(),
        (pl.col("skipped") > 0).any().alias("skipped"),
    ]
    for name in _SPREAD_COLUMNS:
        values = pl.col(name).cast(pl.Float64)
        expressions += [
            values.mean().alias(f"{name}_mean"),
            values.max().alias(f"{name}_max"),
            values.std(ddof=0).alias(f"{name}_std"),
        ]
    optional = {
        **{name: pl.col(name).cast(pl.Float64).mean() for name in (*_OPTIONAL_MEANS, *CODING)},
        "turn": pl.col("turn").first(),
        COMPRESSES.name: (pl.col(COMPRESSES.name) > 0).all(),
        CLIPPED.name: (pl.col(CLIPPED.name) > 0).any(),
    }
    finite = pl.all_horizontal(pl.col(name).is_finite().all() for name in ("loss", GRAD_NORM.name) if name in columns)
    return [*expressions, *(each for name, each in optional.items() if name in columns), finite.alias("finite")]


def _derived() -> list[pl.Expr]:
    seconds = pl.col("step_time_ms_max") / 1000
    return [
        pl.col("step_time_ms_max").alias("step_time_max_ms"),
        (pl.col("global_batch") / seconds).alias("throughput_samples_per_s"),
        (pl.col("real_tokens") / seconds).alias("throughput_tokens_per_s"),
    ]


def _other() -> pl.Expr:
    """What of the step's time no phase accounts for; mean over ranks, as the phases are."""
    known = pl.sum_horizontal(f"{phase}_mean" for phase in PHASES if phase != "other_ms")
    return (pl.col("step_time_ms_mean") - known).clip(lower_bound=0).alias("other_ms_mean")


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

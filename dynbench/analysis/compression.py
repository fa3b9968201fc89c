"""What compression did in the measured steps of a run: what its compressor wrote into the ranks' rows, summed up."""

from __future__ import annotations

from collections.abc import Container, Sequence

import polars as pl

from dynbench.analysis.merge import PARQUET, MergedRun
from dynbench.analysis.timed import rows_of_side
from dynbench.runs.columns import COMPRESSES

MEANS = ("compress_ms", "decompress_ms", "extra_collectives", "extra_collective_ms", "index_bytes", "density")
"""Columns of which the mean over ranks and measured steps says most; null where no row has a value."""
SAMPLED_MEANS, SAMPLED_LARGEST = ("grad_rel_error", "grad_cos_sim"), "grad_rel_error_max"
"""Of all steps after the warm-up: no times, so that a step behind an evaluation, which counts in none, has them too."""


def compression_of(merged: MergedRun) -> dict[str, float | None] | None:
    """The `compression` object of a summary; None of runs that compress nothing.

    Steps that `compress.start_step` leaves as they are count in none of it.
    """
    written = pl.read_parquet_schema(merged.run.path / PARQUET)
    if COMPRESSES.name not in written:
        return None
    after = pl.col("step") >= merged.facts.config.train.warmup_steps
    sampled = rows_of_side(merged, "workers").filter(after & (pl.col(COMPRESSES.name) > 0))
    measured = sampled.join(merged.measured.lazy().select("step"), on="step", how="semi")
    sums = [pl.col(name).sum().alias(f"sum_{name}") for name in ("index_bytes", "payload_bytes") if name in written]
    held = [pl.col("residual_mb").cast(pl.Float64).max()] if "residual_mb" in written else []
    found = _row(measured, [*_means(MEANS, written), *held, *sums])
    largest = [pl.col(SAMPLED_LARGEST).cast(pl.Float64).max()] if SAMPLED_LARGEST in written else []
    norm = [pl.col("residual_norm").sort_by("step").drop_nulls().last()] if "residual_norm" in written else []
    found |= _row(sampled, [*_means(SAMPLED_MEANS, written), *largest, *norm])
    indices, payload = found.pop("sum_index_bytes", None), found.pop("sum_payload_bytes", None)
    share = None if indices is None else indices / payload if payload else 0.0
    columns = (*MEANS, *SAMPLED_MEANS, SAMPLED_LARGEST, "residual_mb", "residual_norm")
    return {**dict.fromkeys(columns), **found, "index_share": share}


def _means(columns: Sequence[str], written: Container[str]) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Float64).mean() for name in columns if name in written]


def _row(rows: pl.LazyFrame, values: Sequence[pl.Expr]) -> dict[str, float | None]:
    return rows.select(values).collect().to_dicts()[0] if values else {}

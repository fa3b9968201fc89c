"""What compression did in the measured steps of a run: what its compressor wrote into the ranks' rows, summed up."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.merge import PARQUET, MergedRun
from dynbench.analysis.timed import rows_of_side
from dynbench.runs.columns import COMPRESSES

MEANS = (
    *("compress_ms", "decompress_ms", "extra_collectives", "extra_collective_ms"),
    *("index_bytes", "density", "grad_rel_error", "grad_cos_sim"),
)
"""Columns of which the mean over ranks and steps says most; null where no row has a value."""
LARGEST = ("residual_mb", "grad_rel_error_max")


def compression_of(merged: MergedRun) -> dict[str, float | None] | None:
    """The `compression` object of a summary; None of runs that compress nothing.

    Steps that `compress.start_step` leaves as they are count in none of it.
    """
    written = pl.read_parquet_schema(merged.run.path / PARQUET)
    if COMPRESSES.name not in written:
        return None
    measured = merged.measured.lazy().select("step")
    rows = rows_of_side(merged, "workers").join(measured, on="step", how="semi").filter(pl.col(COMPRESSES.name) > 0)
    sums = [pl.col(name).sum().alias(f"sum_{name}") for name in ("index_bytes", "payload_bytes") if name in written]
    norm = [pl.col("residual_norm").sort_by("step").drop_nulls().last()] if "residual_norm" in written else []
    found = (
        rows.select(
            *(pl.col(name).cast(pl.Float64).mean() for name in MEANS if name in written),
            *(pl.col(name).cast(pl.Float64).max() for name in LARGEST if name in written),
            *sums,
            *norm,
        )
        .collect()
        .to_dicts()[0]
    )
    indices, payload = found.pop("sum_index_bytes", None), found.pop("sum_payload_bytes", None)
    share = None if indices is None else indices / payload if payload else 0.0
    return {**dict.fromkeys((*MEANS, *LARGEST, "residual_norm")), **found, "index_share": share}

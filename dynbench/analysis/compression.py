"""What compression did in the measured steps of a run: what its compressor wrote into the ranks' rows, summed up."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, cast

import polars as pl

from dynbench.analysis.measure import shown
from dynbench.analysis.merge import MergedRun
from dynbench.runs.columns import COMPRESSES
from dynbench.units import Unit


class Compression(TypedDict):
    """Means per rank and step; steps that `compress.start_step` leaves as they are count in none of it."""

    compress_ms: float | None
    """Compressing, error feedback included."""
    decompress_ms: float | None
    """Decompressing and averaging."""
    extra_collectives: float | None
    """Collectives of a step beside those that carry what was compressed."""
    extra_collective_ms: float | None
    """Their time, from call to completion."""
    index_bytes: float | None
    """Of what a rank wrote, what says which elements are sent."""
    density: Annotated[float | None, Unit("fraction")]
    """Elements sent over elements of what was compressed."""
    index_share: float | None
    """Share of `index_bytes` in what a rank wrote."""
    residual_norm: float | None
    """2-norm of what error feedback kept when it was last measured (`compress.error_every`)."""
    grad_rel_error: Annotated[
        float | None, shown("communication and planning", "gradient error", "error of the mean gradient, relative")
    ]
    """2-norm of the mean gradient's difference from the uncompressed one, over its norm; mean over the steps after the
    warm-up in which it was measured (`compress.error_every`)."""
    residual_mb: Annotated[float | None, shown("memory", "error feedback", "memory of error feedback", "MB")]
    """Most memory of what error feedback kept."""
    grad_rel_error_max: float | None
    """Largest difference of an element over the largest element, of all these steps."""
    grad_cos_sim: float | None
    """Cosine of the angle between the two gradients; mean over these steps."""


def compression_of(merged: MergedRun) -> Compression | None:
    """The `compression` object of a summary; None of runs that compress nothing."""
    written = merged.columns()
    if COMPRESSES.name not in written:
        return None
    after = pl.col("step") >= merged.facts.config.train.warmup_steps
    sampled = merged.worker_rows().filter(after & (pl.col(COMPRESSES.name) > 0))
    measured = sampled.join(merged.measured.lazy().select("step"), on="step", how="semi")

    def of(rows: pl.LazyFrame, **columns: pl.Expr) -> dict[str, Any]:
        known = {name: column for name, column in columns.items() if column.meta.root_names()[0] in written}
        return dict.fromkeys(columns) | (rows.select(**known).collect().to_dicts()[0] if known else {})

    means = ("compress_ms", "decompress_ms", "extra_collectives", "extra_collective_ms", "index_bytes", "density")
    number = {name: pl.col(name).cast(pl.Float64) for name in (*means, "residual_mb", "grad_rel_error", "grad_cos_sim")}
    found = of(
        measured,
        **{name: number[name].mean() for name in means},
        residual_mb=number["residual_mb"].max(),
        index_share=pl.col("index_bytes").sum(),
        payload=pl.col("payload_bytes").sum(),
    )
    # No times, so that a step behind an evaluation, which counts in none, has them too.
    found |= of(
        sampled,
        **{name: number[name].mean() for name in ("grad_rel_error", "grad_cos_sim")},
        grad_rel_error_max=pl.col("grad_rel_error_max").cast(pl.Float64).max(),
        residual_norm=pl.col("residual_norm").sort_by("step").drop_nulls().last(),
    )
    payload = found.pop("payload")
    if found["index_share"] is not None:
        found["index_share"] = found["index_share"] / payload if payload else 0.0
    return cast(Compression, found)

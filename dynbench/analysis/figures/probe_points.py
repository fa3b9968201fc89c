"""The timed shapes of a probe beside what its cost model says of them."""

from __future__ import annotations

import polars as pl

from dynbench.runs.probe_record import CostFit, read_probe
from dynbench.runs.run import Run


def measured_points(source: Run) -> tuple[pl.DataFrame, CostFit] | None:
    """One row per shape: measured (median over ranks) and predicted ms, relative residual, whether held out."""
    record = read_probe(source.path)
    cost = record.cost_model
    if cost is None or not record.timings:
        return None
    frame = pl.DataFrame([row.model_dump() for row in record.timings])
    tokens, length = pl.col("n") * pl.col("length"), pl.col("length")
    predicted = cost.alpha_ms + (cost.beta_ms_per_token + cost.gamma_ms_per_token2 * length) * tokens
    table = (
        frame.group_by("length", "n")
        .agg(measured_ms=pl.col("ms").median(), held_out=pl.col("held_out").first())
        .sort("length", "n")
        .with_columns(padded_tokens=tokens, predicted_ms=predicted)
        .with_columns(residual=pl.col("measured_ms") / pl.col("predicted_ms") - 1)
    )
    return table, cost

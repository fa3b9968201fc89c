"""What a run took to a perplexity, and how far it came in a given time."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from dynbench.analysis.merge import MergedRun

_MS_PER_S = 1000


def targets_of(merged: MergedRun) -> dict[str, float | int | None] | None:
    """The `targets` object of a summary; None where none is set.

    Time is that of the steps from the first one on, warm-up among them, each the maximum over ranks; evaluation is off
    this clock. The target is reached with the first evaluation at or below it; at the time budget stands the last
    evaluation that it has time for. What was not reached, and what a run that ended before its budget would have
    reached, is None.
    """
    asked = merged.facts.config.analysis
    if asked.target_perplexity is None and asked.time_budget_s is None:
        return None
    evaluated = reached(merged)
    by_target, by_time = pl.lit(asked.target_perplexity), pl.lit(asked.time_budget_s)
    target = evaluated.filter(pl.col("perplexity") <= by_target).head(1).to_dicts()
    spent = float(merged.steps["step_time_max_ms"].sum()) / _MS_PER_S
    whole = asked.time_budget_s is not None and spent >= asked.time_budget_s
    in_time = evaluated.filter(pl.col("time_s") <= by_time).tail(1).to_dicts() if whole else []
    first: Mapping[str, float | int | None] = target[0] if target else {}
    return {
        "target_perplexity": asked.target_perplexity,
        "time_to_target_s": first.get("time_s"),
        "steps_to_target": first.get("steps"),
        "bytes_to_target": first.get("bytes"),
        "time_budget_s": asked.time_budget_s,
        "perplexity_at_budget": in_time[0]["perplexity"] if in_time else None,
    }


def reached(merged: MergedRun, measure: str = "perplexity") -> pl.DataFrame:
    """By evaluation: its perplexity or another measure, and steps, seconds and bytes of a rank up to it, if known."""
    columns = {measure: pl.Float64, "steps": pl.Int64, "time_s": pl.Float64, "bytes": pl.Float64}
    evaluations = merged.evaluations
    if measure not in evaluations.columns:
        return pl.DataFrame(schema=columns)
    sent = pl.col("bytes_wire") if "bytes_wire" in merged.steps.columns else pl.lit(None)
    spent = merged.steps.sort("step").select(
        pl.col("step").cast(pl.Int64),
        steps=pl.col("step").cast(pl.Int64) + 1,
        known=pl.int_range(1, pl.len() + 1),
        time_s=pl.col("step_time_max_ms").cum_sum() / _MS_PER_S,
        bytes=sent.cast(pl.Float64).cum_sum(),
    )
    at = evaluations.select(pl.col("step").cast(pl.Int64), pl.col(measure).cast(pl.Float64, strict=False))
    return at.join(spent, on="step").filter(pl.col("known") == pl.col("steps")).sort("step").select(list(columns))

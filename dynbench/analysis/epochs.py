"""What came of each epoch of a run that was asked for in epochs, from the rows of its ranks and its evaluations."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.timed import rows_of_side, timed_columns
from dynbench.runs.columns import CORRECT

Epochs = dict[str, object]


def epochs_of(merged: MergedRun) -> Epochs | None:
    """The `epochs` object of a summary; None where epochs were not asked for.

    Warm-up steps are part of their epoch. A step lasts the maximum over ranks, and an epoch the sum of its steps.
    """
    each = merged.facts.config.train.epoch_steps
    if each is None:
        return None
    trained = _trained(merged, each)
    evaluated = _evaluated(merged, each)
    sent = {"comm_ms": _sent(merged, each, "workers"), "server_comm_ms": _sent(merged, each, "servers")}
    found = []
    for row in trained.sort("epoch").to_dicts():
        number = row.pop("epoch")
        told = {name: by_epoch.get(number, {}) for name, by_epoch in sent.items()}
        found.append({"epoch": number + 1, **row, **evaluated.get(number, _NOT_EVALUATED), **told})
    samples, seconds = (float(trained[name].sum()) for name in ("samples", "train_s"))
    accuracies = [(one["eval_accuracy"], -one["epoch"]) for one in found if one["eval_accuracy"] is not None]
    best = max(accuracies, default=None)
    return {
        "each": found,
        "steps_per_epoch": each,
        "best_accuracy": None if best is None else best[0],
        "best_epoch": None if best is None else -best[1],
        "throughput_samples_per_s": samples / seconds if seconds else None,
    }


_NOT_EVALUATED: dict[str, float | None] = {"eval_loss": None, "eval_accuracy": None}


def _sent(merged: MergedRun, each: int, side: str) -> dict[int, dict[str, float | None]]:
    """By epoch, the means of what the strategy times, over the ranks of a side."""
    epochs = rows_of_side(merged, side).group_by(epoch=pl.col("step") // each)
    means = epochs.agg(pl.col(name).mean() for name in timed_columns(merged)).collect()
    return {int(row.pop("epoch")): row for row in means.to_dicts()}


def _trained(merged: MergedRun, each: int) -> pl.DataFrame:
    """One row per epoch of which a step is complete."""
    rows, weight = merged.worker_rows(), pl.col("weight")
    counted = pl.col(CORRECT.name) if CORRECT.name in rows.collect_schema().names() else pl.lit(None, pl.Int64)
    per_step = rows.group_by("step").agg(
        samples=pl.col("local_batch").cast(pl.Int64).sum(),
        weight=weight.sum(),
        loss=(pl.col("loss") * weight).sum(),
        correct=counted.sum() if CORRECT.name in rows.collect_schema().names() else counted.first(),
        ms=pl.col("step_time_ms").max(),
    )
    whole = per_step.filter(pl.col("step").is_in(merged.steps["step"].implode()))
    return (
        whole.group_by(epoch=pl.col("step") // each)
        .agg(
            steps=pl.len(),
            samples=pl.col("samples").sum(),
            train_loss=pl.col("loss").sum() / pl.col("weight").sum(),
            train_accuracy=pl.col("correct").sum() / pl.col("samples").sum(),
            train_s=pl.col("ms").cast(pl.Float64).sum() / 1e3,
            samples_per_s=1e3 * pl.col("samples").sum() / pl.col("ms").cast(pl.Float64).sum(),
            step_ms=pl.col("ms").mean(),
            uncounted=pl.col("correct").null_count(),
        )
        .with_columns(train_accuracy=pl.when(pl.col("uncounted") == 0).then(pl.col("train_accuracy")))
        .drop("uncounted")
        .collect()
    )


def _evaluated(merged: MergedRun, each: int) -> dict[int, dict[str, float | None]]:
    """Loss and accuracy by epoch, of those whose last step was evaluated."""
    found = {}
    for row in merged.evaluations.to_dicts():
        number, rest = divmod(int(row["step"]) + 1, each)
        if rest == 0:
            found[number - 1] = {"eval_loss": row["loss"], "eval_accuracy": row.get("accuracy")}
    return found

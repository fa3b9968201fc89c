"""What came of each epoch of a run that was asked for in epochs, from the rows of its ranks and its evaluations."""

from __future__ import annotations

from typing import Annotated, TypedDict, cast

import polars as pl

from dynbench.analysis.communication import timed_columns
from dynbench.analysis.measure import shown
from dynbench.analysis.merge import SIDES, MergedRun
from dynbench.analysis.targets import QUALITY
from dynbench.runs.columns import CORRECT
from dynbench.units import Unit

Fraction = Annotated[float | None, Unit("fraction")]


class Epoch(TypedDict):
    """One epoch of which a step is complete."""

    epoch: int
    """Its number, from 1."""
    steps: Annotated[int, Unit("steps")]
    """Its complete steps."""
    samples: Annotated[int, Unit("samples")]
    """Trained on in them."""
    train_loss: float | None
    """Mean loss of these samples as they were met, each counting its weight."""
    train_accuracy: Fraction
    """Right answers over these samples; null where the workload counts none."""
    eval_loss: float | None
    """Of the evaluation after its last step."""
    eval_accuracy: Fraction
    """Of the evaluation after its last step."""
    train_s: float
    """Sum of its steps' times, each the maximum over workers; evaluations left out."""
    samples_per_s: Annotated[float, Unit("samples/s")]
    """Its samples over that time."""
    step_ms: float
    """Mean time of a step."""
    comm_ms: dict[str, float | None]
    """What is timed of communication, by column, means over ranks that train and steps; empty for virtual ranks."""
    server_comm_ms: dict[str, float | None]
    """The same of the ranks that serve them; empty where none do."""


class Epochs(TypedDict):
    """What came of each epoch; warm-up steps are part of theirs."""

    each: list[Epoch]
    """In order."""
    steps_per_epoch: Annotated[int, Unit("steps")]
    """Full global batches in the training samples."""
    best_accuracy: Annotated[
        float | None,
        shown(QUALITY, "best accuracy", "evaluation accuracy, best epoch", "%", better="more", of="model"),
    ]
    """Greatest accuracy of the evaluations after an epoch."""
    best_epoch: int | None
    """The first epoch that had it."""
    throughput_samples_per_s: float | None
    """Samples of all epochs over their time."""


def epochs_of(merged: MergedRun) -> Epochs | None:
    """The `epochs` object of a summary; None where epochs were not asked for.

    Warm-up steps are part of their epoch. A step lasts the maximum over ranks, and an epoch the sum of its steps.
    """
    each = merged.facts.config.train.epoch_steps
    if each is None:
        return None
    trained, evaluated = _trained(merged, each), _evaluated(merged, each)
    comm, server_comm = (_sent(merged, each, side) for side in SIDES)
    found: list[Epoch] = []
    for row in trained.sort("epoch").to_dicts():
        number = row.pop("epoch")
        loss, accuracy = evaluated.get(number, (None, None))
        row |= {"epoch": number + 1, "eval_loss": loss, "eval_accuracy": accuracy}
        row |= {"comm_ms": comm.get(number, {}), "server_comm_ms": server_comm.get(number, {})}
        found.append(cast(Epoch, row))
    samples, seconds = (float(trained[name].sum()) for name in ("samples", "train_s"))
    accuracies = [(one["eval_accuracy"], -one["epoch"]) for one in found if one["eval_accuracy"] is not None]
    best, epoch = max(accuracies, default=(None, None))
    return {
        "each": found,
        "steps_per_epoch": each,
        "best_accuracy": best,
        "best_epoch": None if epoch is None else -epoch,
        "throughput_samples_per_s": samples / seconds if seconds else None,
    }


def _sent(merged: MergedRun, each: int, side: str) -> dict[int, dict[str, float | None]]:
    """By epoch, the means of what the strategy times, over the ranks of a side."""
    epochs = merged.side_rows(side).group_by(epoch=pl.col("step") // each)
    means = epochs.agg(pl.col(name).mean() for name in timed_columns(merged)).collect()
    return {int(row.pop("epoch")): row for row in means.to_dicts()}


def _trained(merged: MergedRun, each: int) -> pl.DataFrame:
    """One row per epoch of which a step is complete."""
    rows, weight = merged.worker_rows(), pl.col("weight")
    known = CORRECT.name in merged.columns()
    per_step = rows.group_by("step").agg(
        samples=pl.col("local_batch").cast(pl.Int64).sum(),
        weight=weight.sum(),
        loss=(pl.col("loss") * weight).sum(),
        correct=pl.col(CORRECT.name).sum() if known else pl.lit(None, pl.Int64).first(),
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


def _evaluated(merged: MergedRun, each: int) -> dict[int, tuple[float | None, float | None]]:
    """Loss and accuracy by epoch, of those whose last step was evaluated."""
    rows = ((divmod(int(row["step"]) + 1, each), row) for row in merged.evaluations.to_dicts())
    return {number - 1: (row["loss"], row.get("accuracy")) for (number, rest), row in rows if rest == 0}

"""What a run's evaluations came to: the last one, what it took to a perplexity, and how far it came in a given time."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict, cast

import polars as pl

from dynbench.analysis.communication import timed_columns
from dynbench.analysis.measure import Metric, shown
from dynbench.analysis.merge import SIDES, MergedRun
from dynbench.runs.records import CORRECT
from dynbench.units import Unit

_MS_PER_S = 1000


QUALITY = "loss and evaluation"
"""Title of the family of metrics."""


class Evaluation(TypedDict):
    """The last evaluation."""

    step: int
    """After which step it was made."""
    loss: Annotated[float, shown(QUALITY, "eval. loss", "evaluation loss", of="model")]
    """Mean loss over the samples evaluated, each counting its weight."""
    accuracy: Annotated[
        NotRequired[float | None],
        shown(QUALITY, "eval. accuracy", "evaluation accuracy", "%", better="more", of="model"),
    ]
    """Right answers over samples; null where a workload of one's own counts none."""
    perplexity: Annotated[NotRequired[float], shown(QUALITY, "eval. perplexity", "evaluation perplexity", of="model")]
    """Of language models in place of an accuracy, exp of the mean loss over target tokens."""
    tokens: NotRequired[int]
    """Target tokens that the perplexity is over."""
    samples: int
    """How many were evaluated."""
    unigram_perplexity: Annotated[
        NotRequired[float | None],
        shown(QUALITY, "unigram perplexity", "perplexity of single tokens, evaluation", better=None, place=1),
    ]
    """What a model that knows only how often each target token of the samples evaluated comes would have; beside a
    perplexity."""


def evaluation_of(evaluations: pl.DataFrame, unigram: object) -> Evaluation | None:
    """The last evaluation, a perplexity beside that of single tokens; None where there was none."""
    if not evaluations.height:
        return None
    last = evaluations.tail(1).to_dicts()[0]
    return cast(Evaluation, {**last, "unigram_perplexity": unigram} if "perplexity" in last else last)


def _target(heading: str, title: str, unit: str = "") -> Metric:
    return shown(QUALITY, heading, title, unit, of="model")


class Targets(TypedDict):
    """What was asked for, and when it was reached."""

    target_perplexity: float | None
    """As asked for (`analysis.target_perplexity`)."""
    time_to_target_s: Annotated[float | None, _target("time to target", "time to the target perplexity", "s")]
    """Time of the steps up to the first evaluation at or below it, warm-up among them, evaluation not; null where none
    was."""
    steps_to_target: Annotated[int | None, _target("steps to target", "steps to the target perplexity", "steps")]
    """Steps up to that evaluation."""
    bytes_to_target: Annotated[
        float | None, _target("sent to target", "sent per rank to the target perplexity", "bytes")
    ]
    """What a rank sent up to it."""
    time_budget_s: float | None
    """Training time asked about (`analysis.time_budget_s`)."""
    perplexity_at_budget: Annotated[float | None, _target("at time budget", "perplexity at the time budget")]
    """Of the last evaluation within that time; null where the run ended before."""


def targets_of(merged: MergedRun) -> Targets | None:
    """The `targets` object of a summary; None where none is set.

    The target is reached with the first evaluation at or below it; at the time budget stands the last evaluation that
    it has time for. What was not reached, and what a run that ended before its budget would have reached, is None.
    """
    wanted = merged.facts.config.analysis
    if wanted.target_perplexity is None and wanted.time_budget_s is None:
        return None
    evaluated = reached(merged)
    by_target, by_time = pl.lit(wanted.target_perplexity), pl.lit(wanted.time_budget_s)
    target = evaluated.filter(pl.col("perplexity") <= by_target).head(1).to_dicts()
    spent = float(merged.steps["step_time_max_ms"].sum()) / _MS_PER_S
    whole = wanted.time_budget_s is not None and spent >= wanted.time_budget_s
    in_time = evaluated.filter(pl.col("time_s") <= by_time).tail(1).to_dicts() if whole else []
    first = target[0] if target else {}
    return {
        "target_perplexity": wanted.target_perplexity,
        "time_to_target_s": first.get("time_s"),
        "steps_to_target": first.get("steps"),
        "bytes_to_target": first.get("bytes"),
        "time_budget_s": wanted.time_budget_s,
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


Fraction = Annotated[float | None, Unit("fraction")]


class Epoch(TypedDict):
    """One epoch of which a step is complete."""

    epoch: int
    """Its number, from 1."""
    steps: int
    """Its complete steps."""
    samples: int
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
    samples_per_s: float
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

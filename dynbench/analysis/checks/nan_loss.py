"""A loss that is not finite: the model has diverged, and what the run computes is no training."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dynbench.analysis.checks.finding import Evidence, Finding

HINT = (
    "Lower the learning rate, or use --precision fp32 or bf16; losses are not compared, and do not quote times of a "
    "diverged model."
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run whose training or evaluation loss is not finite; information where the scaler skipped it."""
    for run in evidence.runs:
        broken = run.steps.filter(~pl.col("loss_global").is_finite())
        if broken.height:
            yield Finding(
                "info" if broken["skipped"].all() else "fail",
                f"{run.label}: the loss is not finite in {broken.height} of {run.steps.height} steps, first in step "
                f"{broken['step'][0]}",
                "a finite loss in every step",
                HINT,
                values={
                    "run": run.label,
                    "broken": broken.height,
                    "steps": run.steps.height,
                    "first": int(broken["step"][0]),
                },
                cases={"seen": "training", "limit": "training"},
            )
            continue
        evaluations = run.evaluations
        if "loss" in evaluations.columns and not evaluations["loss"].cast(pl.Float64, strict=False).is_finite().all():
            yield Finding(
                "fail",
                f"{run.label}: an evaluation loss is not finite",
                "a finite evaluation loss",
                HINT,
                values={"run": run.label},
                cases={"seen": "evaluation", "limit": "evaluation"},
            )

"""Optimizer steps that the fp16 loss scaler skipped."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding

LIMIT = 0.05


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run that skipped more than `LIMIT` of its measured steps."""
    for run in evidence.measured_runs:
        share = float(run.measured["skipped"].mean() or 0.0)  # type: ignore[arg-type]  # the mean of booleans
        if share > LIMIT:
            yield Finding(
                "warn",
                f"{run.label}: {100 * share:.0f} % of the optimizer steps were skipped by the loss scaler",
                f"{100 * LIMIT:.0f} %",
                "Lower the learning rate, or use --precision bf16.",
                values={"run": run.label, "share": share, "limit": LIMIT},
            )

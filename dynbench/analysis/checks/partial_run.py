"""Runs that ended early: their numbers are of the part that is there."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.facts import status_phrase


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run that stopped before its last step."""
    for run in evidence.runs:
        if run.measured.height < run.facts.steps or run.facts.status != "completed":
            yield Finding(
                "warn",
                f"{run.label}: {run.measured.height} measured steps, status {run.facts.status}",
                f"{run.facts.steps} steps, completed",
                f"See {run.run.logs_dir} for why; partial launches are left out of comparisons. Train it again.",
                values={
                    "run": run.label,
                    "measured": run.measured.height,
                    "status": status_phrase(run.facts.status),
                    "steps": run.facts.steps,
                    "folder": str(run.run.logs_dir),
                },
            )

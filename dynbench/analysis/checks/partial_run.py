"""Runs that ended early: their numbers are of the part that is there."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.run_facts import status_phrase


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run that stopped before its last step."""
    for run in evidence.runs:
        if run.measured.height < run.facts.steps or run.facts.status != "completed":
            yield Finding(
                "warn",
                f"{run.label}: {run.measured.height} measured steps, status {run.facts.status}",
                f"{run.facts.steps} steps, completed",
                _hint(run),
                values={
                    "run": run.label,
                    "measured": run.measured.height,
                    "status": status_phrase(run.facts.status),
                    "steps": run.facts.steps,
                    "folder": str(run.run.logs_dir),
                },
                cases={"hint": "unfinished" if run.facts.unfinished else "ended"},
            )


def _hint(run: MergedRun) -> str:
    if run.facts.unfinished:
        return "It is not over yet: analyze it again when it has ended; until then it is left out of comparisons."
    return f"See {run.run.logs_dir} for why; partial launches are left out of comparisons. Train it again."

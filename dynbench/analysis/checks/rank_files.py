"""Rank files that could not be used, or only in part."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per such file."""
    for run in evidence.runs:
        for note in run.notes:
            yield Finding(
                "warn",
                f"{run.label}: {note}",
                "one file per rank, written by this version",
                "What can be read is used; train again for the whole.",
                values={"run": run.label, "note": note},
            )

"""Launches that did not run under the same circumstances."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import circumstances_that_differ, describe


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the first launch that differs from the first of all, and one for launches without provenance."""
    first, *others = evidence.runs
    for other in others:
        found = circumstances_that_differ(first, other)
        if found:
            yield Finding(
                "warn",
                f"{first.label} and {other.label}: {describe(found)}",
                "the same machine, system and code",
                "Launch all arms together: dynbench compare.",
            )
            break
    for run in evidence.runs:
        if not run.facts.env:
            yield Finding("warn", f"{run.label}: env.json is missing", "known provenance", "Train it again.")

"""Launches of one arm that all ran before those of the other: whatever drifts meanwhile becomes their difference."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dynbench.analysis.checks.finding import Evidence, Finding

SESSION_H = 1.0
"""Hours without a launch after which the machine is in another state: other clocks, other neighbours, other code."""

HINTS = {
    "turns": "dynbench compare RECIPE launches the arms in ABBA order.",
    "sessions": "The interval does not hold what changes between two sessions: analyze launches of the same code from "
    "two days, and set --noise-threshold above what they differ by.",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison of several pairs whose arms did not take turns."""
    for comparison in evidence.comparisons:
        starts = [sorted(run.facts.started for run in arm) for arm in zip(*comparison.pairing.pairs, strict=True)]
        one, other = sorted(starts)
        if len(one) > 1 and one[-1] < other[0]:
            between = datetime.fromisoformat(other[0]) - datetime.fromisoformat(one[-1])
            hours = between.total_seconds() / 3600
            case = "sessions" if hours >= SESSION_H else "turns"
            apart = f"{hours:,.1f} h " if case == "sessions" else ""
            yield Finding(
                "warn",
                f"{comparison.baseline.label} and {comparison.candidate.label}: all launches of one ran {apart}before "
                "those of the other",
                "launches in turn, so that drift cancels",
                HINTS[case],
                values={"baseline": comparison.baseline.label, "candidate": comparison.candidate.label, "hours": hours},
                cases=dict.fromkeys(("seen", "hint"), case),
            )

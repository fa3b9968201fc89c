"""Launches of one arm that all ran before those of the other: whatever drifts meanwhile becomes their difference."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison of several pairs whose arms did not take turns."""
    for comparison in evidence.comparisons:
        starts = [sorted(run.facts.started for run in arm) for arm in zip(*comparison.pairing.pairs, strict=True)]
        one, other = sorted(starts)
        if len(one) > 1 and one[-1] < other[0]:
            yield Finding(
                "warn",
                f"{comparison.baseline.label} and {comparison.candidate.label}: all launches of one ran before those "
                "of the other",
                "launches in turn, so that drift cancels",
                "dynbench compare RECIPE launches the arms in ABBA order.",
                values={"baseline": comparison.baseline.label, "candidate": comparison.candidate.label},
            )

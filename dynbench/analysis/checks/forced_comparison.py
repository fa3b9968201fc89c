"""A comparison of runs that cannot be compared, made because the user insisted."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import describe


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per forced comparison."""
    for comparison in evidence.comparisons:
        if comparison.forbidden:
            arms = f"{comparison.baseline.label} and {comparison.candidate.label}"
            yield Finding(
                "fail",
                f"{arms} differ in {describe(comparison.forbidden)}",
                "nothing but what is compared may differ",
                "Do not quote the ratio; train both arms with the same values.",
                values={
                    "baseline": comparison.baseline.label,
                    "candidate": comparison.candidate.label,
                    "differences": describe(comparison.forbidden),
                },
            )

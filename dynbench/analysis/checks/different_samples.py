"""Arms that draw their samples differently from the same data, so that single steps cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison at level `stream`."""
    for comparison in evidence.comparisons:
        if comparison.level == "stream" and not comparison.forbidden:
            yield Finding(
                "info",
                f"{comparison.baseline.label} and {comparison.candidate.label} compute different samples per step",
                "level step or window",
                "The effect is time per real token; over few steps the samples drawn add to the noise.",
            )

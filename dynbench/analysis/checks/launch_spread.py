"""Launches of one arm that differ a lot among themselves."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparison import seconds_per_token
from dynbench.analysis.stats import coefficient_of_variation

LIMIT = 0.10
"""Coefficient of variation over launches, pyperf's limit for values of one benchmark."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per arm whose seconds per real token vary by `LIMIT` or more; launches of one seed are compared."""
    for arm in evidence.arms:
        times = [seconds_per_token(run) for run in arm.runs if run.measured.height and not run.partial]
        if len(times) < 2:
            continue
        spread = coefficient_of_variation(times)
        if spread >= LIMIT:
            yield Finding(
                "warn",
                f"{arm.label}: time per real token varies by {100 * spread:.0f} % over {len(times)} launches",
                f"less than {100 * LIMIT:.0f} %",
                "Stop other work on the machine, fix its clocks, or take more steps and launches.",
                values={"arm": arm.label, "spread": spread, "launches": len(times), "limit": LIMIT},
            )

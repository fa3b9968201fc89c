"""Steps that become slower or faster in the course of a launch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.stats import relative_drift

LIMIT = 0.10
"""Change over one launch, as a part of its median step."""

_STANDARD_ERRORS = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run whose drift exceeds `LIMIT` and what the spread of its steps alone would show."""
    for run in evidence.measured_runs:
        times = run.measured["step_time_max_ms"].to_numpy()
        if len(times) < 20:
            continue
        drift = relative_drift(times)
        by_chance = _STANDARD_ERRORS * float(np.std(times) / np.median(times)) * math.sqrt(12 / len(times))
        if abs(drift) > max(LIMIT, by_chance):
            yield Finding(
                "warn",
                f"{run.label}: step time changes by {100 * drift:+.0f} % over the launch",
                f"{100 * LIMIT:.0f} %",
                "Look for throttling or other work on the machine; ABBA order cancels a linear drift between launches.",
                values={"run": run.label, "drift": drift, "limit": LIMIT},
            )

"""A first measured step that still belongs to the warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.stats import robust_z

LIMIT = 14.8
"""Modified z-score above which a first value stands out (hyperfine's limit for outliers)."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run whose first kept step stands far out."""
    for run in evidence.measured_runs:
        times = run.measured["step_time_max_ms"].to_numpy()
        if len(times) < 10:
            continue
        z = robust_z(float(times[0]), times[1:])
        if z > LIMIT:
            longer = 2 * max(5, run.facts.number("train.warmup_steps"))
            yield Finding(
                "warn",
                f"{run.label}: the first measured step took {times[0]:.3g} ms, {z:.0f} deviations above the others",
                f"{LIMIT} deviations",
                f"Warm up longer: --warmup-steps {longer}.",
                values={
                    "run": run.label,
                    "first_ms": float(times[0]),
                    "deviations": z,
                    "limit": LIMIT,
                    "warmup_steps": longer,
                },
            )

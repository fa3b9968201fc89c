"""Time of a step that no recorded phase accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding

LIMIT = 0.05


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run with more than `LIMIT` of its step time outside every phase."""
    for run in evidence.measured_runs:
        share = float(run.measured["other_ms_mean"].sum()) / run.time_ms
        if share > LIMIT:
            yield Finding(
                "info",
                f"{run.label}: {100 * share:.0f} % of the step time is in no phase",
                f"{100 * LIMIT:.0f} %",
                "Small steps show the cost of bookkeeping; a larger model or batch makes it vanish.",
                values={"run": run.label, "share": share, "limit": LIMIT},
            )

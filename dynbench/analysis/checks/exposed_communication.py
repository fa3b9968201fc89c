"""Communication that even the last rank to arrive spends: no policy gives it back."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding

LIMIT = 0.30


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the first arm that spends more than `LIMIT` of its steps on exposed communication."""
    for arm in evidence.arms:
        run = arm.runs[0]
        share = float(run.measured["exposed_comm_ms"].sum()) / run.time_ms if run.measured.height else 0.0
        if share > LIMIT:
            yield Finding(
                "info",
                f"{arm.label}: {100 * share:.0f} % of the step time is exposed communication",
                f"{100 * LIMIT:.0f} %",
                "Scheduling cannot shorten it; a larger batch, a faster link, or compression can.",
                values={"arm": arm.label, "share": share, "limit": LIMIT},
            )
            return

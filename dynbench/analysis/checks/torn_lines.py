"""Lines of rank files that were cut short or cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run with such lines."""
    for run in evidence.runs:
        if run.torn_lines:
            yield Finding(
                "warn",
                f"{run.label}: {run.torn_lines} line{'s' if run.torn_lines > 1 else ''} dropped",
                "0 lines",
                "A killed rank or a full disk leaves them; steps that lack a rank are left out. Train it again.",
                values={"run": run.label, "lines": run.torn_lines},
            )

"""Training samples of a single class: the loss falls to nothing whatever the model does."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import fact


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the first run that trained on one class."""
    for run in evidence.runs:
        if fact(run.facts.env, "data.train.classes") == 1:
            yield Finding(
                "warn",
                f"{run.label}: every training sample has the same label",
                "two classes or more",
                "Times are valid, but loss and accuracy say nothing, and neither does their agreement between arms; "
                "check --label-column.",
                values={"run": run.label},
            )
            return

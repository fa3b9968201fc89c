"""Ranks played one after another on one device."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding when any run is virtual."""
    virtual = [run for run in evidence.runs if run.facts.virtual]
    if virtual:
        run = virtual[0]
        yield Finding(
            "info",
            f"{run.label}: {run.world_size} virtual ranks, communication model {run.facts.comm_model}",
            "real ranks",
            "A step is the slowest measured rank plus that model; quote the numbers as virtual.",
            values={"run": run.label, "world_size": run.world_size, "comm_model": run.facts.comm_model},
        )

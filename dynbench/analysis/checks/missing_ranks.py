"""Ranks that were launched and left no row: a maximum over the others is too small."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per run with missing ranks."""
    for run in evidence.runs:
        if run.missing_ranks:
            named = ", ".join(str(rank) for rank in run.missing_ranks[:8])
            yield Finding(
                "fail",
                f"{run.label}: no rows of rank {named} ({len(run.ranks)} of {run.world_size} ranks present)",
                "every rank",
                f"Bring the files of the other nodes into {run.run.ranks_dir}, or train again.",
                values={
                    "run": run.label,
                    "ranks": run.missing_ranks[:8],
                    "present": len(run.ranks),
                    "world_size": run.world_size,
                    "folder": str(run.run.ranks_dir),
                },
            )

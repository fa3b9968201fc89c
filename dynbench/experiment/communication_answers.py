"""What communication cost each arm: by operation, and exposed as two ways tell it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Literal

from dynbench.analysis.metrics import lookup, workers_of
from dynbench.analysis.tables import Launches
from dynbench.experiment.subject import Subject, whole

_KEYS = {
    "null": "against_null.exposed_ms",
    "more": "against_null.sync_ms",
    "compute": "against_null.compute_ms",
    "optimizer": "against_null.optimizer_ms",
    "other": "against_null.other_ms",
    "sync": "exposed_comm_ms.mean",
}
"""Number of an arm that took turns with a step without communication to its key in a summary."""


def launches_of(subject: Subject) -> Launches:
    """Name of the arm to the summaries of the launches that tables show."""
    return {name: [member.summary for member in whole(members)] for name, members in subject.arms.items()}


def exposures(subject: Subject) -> Iterator[dict[str, object]]:
    """Of every arm that took turns with a step without communication: its name and the means of `_KEYS`, ms."""
    for name, summaries in launches_of(subject).items():
        told = ([value for key in _KEYS.values() if (value := lookup(one, key)) is not None] for one in summaries)
        known = [launch for launch in told if len(launch) == len(_KEYS)]
        if known:
            yield {"arm": name, **dict(zip(_KEYS, map(fmean, zip(*known, strict=True)), strict=True))}


def why_not_exposed(subject: Subject) -> Literal["virtual", "served", "unknown"]:
    """Why no step without communication was measured: none of the arms can, or nobody asked."""
    summaries = [member.summary for member in subject.members]
    if all(summary.get("launcher") == "virtual" for summary in summaries):
        return "virtual"
    return "served" if all(workers_of(one) != lookup(one, "world_size") for one in summaries) else "unknown"

"""Whether the steps wait for a machine or for the data: ranks that are slow whatever they are given."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Seen
from dynbench.analysis.slowest import PACE_LIMIT, slow_ranks


def slowest_rank(evidence: Evidence) -> Iterator[Seen]:
    """Each rank that is slowest more often than equal ranks would be and slow at equal work, in the first such arm.

    A rank that `launch.slowdown` stretches was asked for, and is told as information.
    """
    told: set[int] = set()
    for arm in evidence.arms:
        facts = arm.runs[0].facts
        for found in slow_ranks(arm.whole):
            if found.rank in told:
                continue
            told.add(found.rank)
            values = {"arm": arm.label, **{name: getattr(found, name) for name in ("rank", "share", "equal", "pace")}}
            asked = facts.config.launch.slowdown.get(found.rank, 1.0) > 1
            case = "asked" if asked else "virtual" if facts.virtual else "machine"
            yield Seen("info" if asked else "warn", values | {"limit": PACE_LIMIT}, case)

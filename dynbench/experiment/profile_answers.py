"""Whether communication is the bottleneck, from profiled steps: tables, and how it grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dynbench.analysis.bottlenecks import Bottleneck, bottlenecks
from dynbench.experiment.communication_answers import launches_of
from dynbench.experiment.subject import Subject


def facts(subject: Subject) -> dict[str, object]:
    """What sentences are about: every profiled arm, and every strategy from the fewest ranks to the most."""
    found = {one.arm: one for one in bottlenecks(launches_of(subject))}
    return {"profiled": list(found.values()), "profiled_growth": list(_growth(subject, found))}


def _growth(subject: Subject, found: Mapping[str, Bottleneck]) -> Iterator[tuple[Bottleneck, Bottleneck]]:
    """Of every strategy with several numbers of ranks."""
    scaled = [one for one in subject.scaling if one.arm in found]
    for strategy in dict.fromkeys(one.strategy for one in scaled):
        arms = sorted((one for one in scaled if one.strategy == strategy), key=lambda one: one.workers)
        if arms[0].workers != arms[-1].workers:
            yield found[arms[0].arm], found[arms[-1].arm]

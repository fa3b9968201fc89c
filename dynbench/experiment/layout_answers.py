"""What a layout alone changes: arms that take the same optimizer steps, padded and in rows of real tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dynbench.analysis.verdict import Verdict
from dynbench.experiment.subject import Subject

TURNED = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
"""A verdict told of the other arm; the rest are the same of both."""


@dataclass(frozen=True)
class PackedPair:
    """A packed arm against a padded one that computed the same samples in every step.

    Attributes:
        packed, padded: names of the arms.
        verdict: on the packed one.
        speedup: the padded arm's time over the packed one's, with its interval.
    """

    packed: str
    padded: str
    verdict: Verdict
    speedup: float
    interval: tuple[float, float] | None

    @property
    def changed(self) -> float:
        """By which part the packed arm's time is less or more."""
        return abs(1 - 1 / self.speedup)


def packed_pairs(subject: Subject) -> Iterator[PackedPair]:
    """Every packed arm against every padded one that can be compared with it, the padded ones in order."""
    for item in subject.pairs or subject.comparisons:
        padded = [_layout(subject, name) == "padded" for name in (item.baseline, item.candidate)]
        if item.level != "step" or item.verdict is Verdict.INCOMPARABLE or padded[0] == padded[1]:
            continue
        if padded[0]:
            yield PackedPair(item.candidate, item.baseline, item.verdict, item.speedup, item.interval)
        else:
            ends = None if item.interval is None else (1 / item.interval[1], 1 / item.interval[0])
            turned = TURNED.get(item.verdict, item.verdict)
            yield PackedPair(item.baseline, item.candidate, turned, 1 / item.speedup, ends)


def _layout(subject: Subject, arm: str) -> object:
    """Of an arm's micro-batches; records of earlier versions knew but one."""
    return next((member.summary.get("layout", "padded") for member in subject.arms.get(arm, ())), "padded")

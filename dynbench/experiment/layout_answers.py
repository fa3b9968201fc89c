"""What a layout alone changes: arms that take the same optimizer steps, padded and in rows of real tokens, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.tables import format_interval
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import NBSP, percent, ratio
from dynbench.experiment.subject import Subject

OWN = tuple(f"layouts.{what}" for what in ("packed", "padded", "saved", "speedup", "interval"))
"""Placeholders that only the sentences of this module use."""
TURNED = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
"""A verdict told of the other arm; the rest are the same of both."""

_Found = tuple[str, str, Verdict, float, tuple[float, float] | None]
"""The packed arm, the padded one, the verdict on the first, the second's time over the first's, and its interval."""


def layout_sentences(speaker: Speaker) -> str:
    """A line per packed arm and padded one that computed the same samples in every step; empty without any."""
    lines = []
    for packed, padded, verdict, speedup, ends in _pairs(speaker.subject):
        own = {
            "layouts_packed": f"`{packed}`",
            "layouts_padded": f"`{padded}`",
            "layouts_saved": percent(abs(1 - 1 / speedup)),
            "layouts_speedup": ratio(speedup),
            "layouts_interval": format_interval(ends).replace(" ", NBSP) or speaker.template.label("words.no_interval"),
        }
        lines.append(speaker.say(f"answers.layouts.{verdict}", **own))
    return speaker.bullets(lines)


def _pairs(subject: Subject) -> Iterator[_Found]:
    """What can be said of a packed arm and a padded one, the padded ones in order."""
    known: Sequence[ComparisonRecord] = subject.pairs or subject.comparisons
    for item in known:
        padded = [_layout(subject, name) == "padded" for name in (item.baseline, item.candidate)]
        if item.level != "step" or item.verdict is Verdict.INCOMPARABLE or padded[0] == padded[1]:
            continue
        if padded[0]:
            yield item.candidate, item.baseline, item.verdict, item.speedup, item.interval
        else:
            ends = None if item.interval is None else (1 / item.interval[1], 1 / item.interval[0])
            yield item.baseline, item.candidate, TURNED.get(item.verdict, item.verdict), 1 / item.speedup, ends


def _layout(subject: Subject, arm: str) -> object:
    """Of an arm's micro-batches; records of earlier versions knew but one."""
    return next((member.summary.get("layout", "padded") for member in subject.arms.get(arm, ())), "padded")

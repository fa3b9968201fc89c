"""What a comparison of compressors comes to: which one keeps the quality with the fewest bytes, and what it does here.

A compressor's time is that of one link, so that no GPU-hours are concluded from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.analysis.links import faster_gbps, spans_text
from dynbench.analysis.record import ComparisonRecord
from dynbench.experiment.report_communication import launches_of
from dynbench.experiment.report_conclusions import Doubts, doubts_in_words, doubts_of, judged
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.report_quality import WITHIN, Quality, qualities
from dynbench.report import Template


@dataclass(frozen=True)
class Chosen:
    """The arm that keeps the quality with the fewest bytes.

    Attributes:
        arm: its quality, and how much less it sends.
        time: it against the baseline on the link of these launches.
        doubts: on that time.
        links: in words, over links of which speed its step is shorter; empty where that is not known.
    """

    arm: Quality
    time: ComparisonRecord
    doubts: Doubts
    links: str


@dataclass(frozen=True)
class Compressors:
    """What the compressors that can be judged come to.

    Attributes:
        measure: what they were evaluated by, `perplexity` or `loss`; None where some launch was not.
        judged: whether any can be.
        open: names of those that may keep the quality or not.
        chosen: the arm to use; None where none is known to keep the quality and send less.
        allowed: what counts as within.
    """

    measure: str | None
    judged: bool
    open: list[str]
    chosen: Chosen | None
    allowed: float = WITHIN


def compressors(subject: ReportInput, template: Template) -> Compressors:
    """Which arm keeps the quality with the fewest bytes, or that none is known to."""
    measure, found = qualities(subject)
    compared = {item.candidate: item for item in judged(subject)}
    arms = {name: arm for name, arm in found.items() if name in compared and arm.judgement}
    kept = {name: arm for name, arm in arms.items() if arm.judgement == "within" and _saves(arm)}
    chosen = None
    if kept:
        name = max(kept, key=lambda each: kept[each].compression or 0.0)
        item, launches = compared[name], launches_of(subject)
        links = spans_text(faster_gbps(launches[name], launches[subject.baseline]), template.label)
        chosen = Chosen(kept[name], item, doubts_in_words(template, doubts_of(subject, item)), links)
    return Compressors(measure, bool(arms), [name for name, arm in arms.items() if arm.judgement == "open"], chosen)


def _saves(arm: Quality) -> bool:
    """Whether it is known to send less than the gradients are."""
    return arm.compression is not None and arm.compression > 1

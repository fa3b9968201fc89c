"""What a comparison of compressors comes to: which one keeps the quality with the fewest bytes, and what it does here.

A compressor's time is that of one link, so that no GPU-hours are concluded from it.
"""

from __future__ import annotations

from dynbench.analysis.links import faster_gbps, spans_text
from dynbench.experiment.answers import Speaker
from dynbench.experiment.communication_answers import launches_of
from dynbench.experiment.conclusions import doubts_of, judged, verdict_text
from dynbench.experiment.formats import interval, number, percent, ratio
from dynbench.experiment.quality_answers import WITHIN, Quality, change_of, measure_text, qualities
from dynbench.experiment.report_texts import finding_texts

OWN = (
    *(f"chosen.{what}" for what in ("name", "times", "change", "verdict", "speedup", "interval", "launches", "links")),
    *("compress.names", "compress.within"),
)
"""Placeholders that only the sentences of this module use."""


def compress_sentences(speaker: Speaker) -> list[str]:
    """Which arm keeps the quality with the fewest bytes, or that none is known to; its time here and over links."""
    subject = speaker.subject
    measure, found = qualities(subject)
    compared = {item.candidate: item for item in judged(subject)}
    arms = {name: arm for name, arm in found.items() if name in compared and arm.judgement}
    own: dict[str, str | None] = {
        "quality_measure": measure_text(speaker, measure) if measure else None,
        "compress_within": percent(WITHIN),
        "compress_names": ", ".join(f"`{name}`" for name, arm in arms.items() if arm.judgement == "open"),
    }
    kept = {name: arm for name, arm in arms.items() if arm.judgement == "within" and _saves(arm)}
    if not kept:
        case = "unknown" if not arms else "open" if own["compress_names"] else "none"
        return [speaker.say(f"compressing.{case}", **own).strip()]
    name = max(kept, key=lambda each: kept[each].compression or 0.0)
    launches = launches_of(subject)
    item, doubts = compared[name], doubts_of(subject, compared[name])
    own |= {
        "chosen_name": f"`{name}`",
        "chosen_times": number(kept[name].compression),
        "chosen_change": change_of(kept[name]),
        "chosen_verdict": verdict_text(speaker, item),
        "chosen_speedup": ratio(item.speedup),
        "chosen_interval": interval(item) or speaker.template.label("words.no_interval"),
        "chosen_launches": str(item.launches),
        "chosen_links": spans_text(faster_gbps(launches[name], launches[subject.baseline]), speaker.template.label),
        "doubts_names": ", ".join(dict.fromkeys(f"`{check.id}`" for check in doubts)),
        "doubts_hints": " ".join(dict.fromkeys(finding_texts(speaker.template, check)[-1] for check in doubts)),
    }
    keys = ["kept", "here", *(["links"] if own["chosen_links"] else []), *(["doubted"] if doubts else [])]
    return [speaker.say(f"compressing.{key}", **own).strip() for key in keys]


def _saves(arm: Quality) -> bool:
    """Whether it is known to send less than the gradients are."""
    return arm.compression is not None and arm.compression > 1

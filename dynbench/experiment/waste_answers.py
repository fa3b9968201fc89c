"""Where the step time of a report's arms goes beyond the ideal: the table, and what it comes to in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.metrics import lookup
from dynbench.analysis.table_specs import WASTE, mean_waste
from dynbench.analysis.verdict import Verdict
from dynbench.analysis.waste import PARTS, ms_per_kilotoken
from dynbench.experiment import report_texts as texts
from dynbench.experiment.answers import Speaker
from dynbench.experiment.conclusions import best_of
from dynbench.experiment.formats import number, percent
from dynbench.experiment.subject import Json, Member, whole
from dynbench.report import Template

OWN = (
    *(f"waste.{what}" for what in ("s", "total", "largest", "share", "reason")),
    *(f"fall.{what}" for what in ("name", "before", "after", "part", "change", "left", "beside", "grew", "more")),
)
"""Placeholders that only the sentences of this module use."""


def waste_sentences(speaker: Speaker) -> str:
    """A line per arm: how far its step is from the ideal, and the largest part of it; or why there is no telling."""
    lines = []
    for name, members in speaker.subject.arms.items():
        summaries = _summaries(members)
        found = mean_waste(summaries)
        if "s" not in found:
            reason = _reason(summaries, speaker.template)
            if reason is not None:
                lines.append(speaker.say("answers.waste.unknown", arm_name=f"`{name}`", waste_reason=reason))
            continue
        largest = max(PARTS, key=found.__getitem__)
        own = {
            "arm_name": f"`{name}`",
            "waste_s": f"{found['s']:.2f}",
            "waste_total": percent(sum(found[part] for part in PARTS)),
            "waste_largest": _part(largest, speaker),
            "waste_share": percent(found[largest]),
        }
        lines.append(speaker.say("answers.waste.line", **own))
    return speaker.bullets(lines)


def waterfall_sentence(speaker: Speaker) -> str:
    """What the best candidate gave back of the baseline's step, or took beyond it, and what is left.

    Empty where nothing tells: the verdict is neither FASTER nor SLOWER, or the parts say the opposite of it.
    """
    subject, best = speaker.subject, best_of(speaker.subject)
    if best is None:
        return ""
    before, after = (_times(subject.arms.get(name, ())) for name in (subject.baseline, best.candidate))
    if before is None or after is None:
        return ""
    gained = sum(before.values()) - sum(after.values())
    if best.verdict is Verdict.FASTER and gained > 0:
        case, gains = "gains", {part: before[part] - after[part] for part in PARTS}
    elif best.verdict is Verdict.SLOWER and gained < 0:
        case, gains = "costs", {part: after[part] - before[part] for part in PARTS}
    else:
        return ""
    part = max(PARTS, key=gains.__getitem__)
    if gains[part] <= 0:
        return ""
    own = {
        "fall_name": f"`{best.candidate}`",
        "fall_before": number(sum(before.values())),
        "fall_after": number(sum(after.values())),
        "fall_part": _part(part, speaker),
        "fall_change": number(gains[part]),
        "fall_left": number(sum(after.values()) - after["ideal"]),
        "fall_beside": "",
    }
    grew = min(PARTS, key=gains.__getitem__)
    if case == "gains" and gains[part] > gained and gains[grew] < 0:
        more = {"fall_grew": _part(grew, speaker), "fall_more": number(-gains[grew])}
        own["fall_beside"] = speaker.say("answers.waterfall.beside", **more)
    return speaker.say(f"answers.waterfall.{case}", **own)


def _part(part: str, speaker: Speaker) -> str:
    return speaker.template.label(f"waste.{part}", WASTE[part])


def _summaries(members: Sequence[Member]) -> list[Json]:
    return [member.summary for member in whole(members)]


def _times(members: Sequence[Member]) -> dict[str, float] | None:
    """The ideal and the parts, ms per 1,000 real tokens, means over launches; None where one does not know them."""
    launches = [_launch(summary) for summary in _summaries(members)]
    known = [launch for launch in launches if launch is not None]
    if not known or len(known) < len(launches):
        return None
    return {key: fmean(launch[key] for launch in known) for key in ("ideal", *PARTS)}


def _launch(summary: Json) -> dict[str, float] | None:
    waste, time_ms, tokens = summary.get("waste"), lookup(summary, "step_time_ms.total"), lookup(summary, "real_tokens")
    if not isinstance(waste, Mapping) or time_ms is None or tokens is None:
        return None
    return ms_per_kilotoken(waste, time_ms, tokens)


def _reason(summaries: Sequence[Json], template: Template) -> str | None:
    """Why no ideal can be stated; None in records of earlier versions, which do not ask."""
    wastes = (summary.get("waste") for summary in summaries)
    found = next((waste for waste in wastes if isinstance(waste, Mapping) and waste.get("reason")), None)
    return texts.said(template, found.get("reason_said"), found["reason"]) if found else None

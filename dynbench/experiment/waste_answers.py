"""Where the step time of a report's arms goes beyond the ideal: the table, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dynbench.analysis.metrics import lookup
from dynbench.analysis.table_specs import WASTE, mean_waste
from dynbench.analysis.verdict import Verdict
from dynbench.analysis.waste import PARTS, ms_per_kilotoken
from dynbench.experiment import report_texts as texts
from dynbench.experiment.conclusions import best_of
from dynbench.experiment.subject import Json, Member, Subject, whole
from dynbench.report import Template


@dataclass(frozen=True)
class Waste:
    """How far the step of an arm is from its ideal.

    Attributes:
        arm: its name.
        means: `s`, times the ideal, and each of `PARTS` as a part of the step; empty where no ideal can be stated.
        reason: why none can, in the report's language.
    """

    arm: str
    means: Mapping[str, float]
    reason: str | None = None

    @property
    def total(self) -> float:
        """All parts together."""
        return sum(self.means[part] for part in PARTS)

    @property
    def largest(self) -> str:
        """One of `PARTS`."""
        return max(PARTS, key=self.means.__getitem__)


@dataclass(frozen=True)
class Waterfall:
    """What the best candidate gave back of the baseline's step, or took beyond it; ms per 1,000 real tokens.

    Attributes:
        candidate: its name.
        faster: whether it gave back.
        before, after: what baseline and candidate take.
        left: what the candidate takes beyond its ideal.
        part, change: the largest of what came back, or grew.
        grew, more: the part that grew beside it where more came back than in all, and by how much.
    """

    candidate: str
    faster: bool
    before: float
    after: float
    left: float
    part: str
    change: float
    grew: str | None
    more: float


def facts(subject: Subject, template: Template) -> dict[str, object]:
    """What sentences are about."""
    parts = {part: template.label(f"waste.{part}", WASTE[part]) for part in PARTS}
    return {"arms_waste": list(arms_waste(subject, template)), "waterfall": waterfall(subject), "waste_parts": parts}


def arms_waste(subject: Subject, template: Template) -> Iterator[Waste]:
    """Of every arm of which it is known, or why it is not."""
    for name, members in subject.arms.items():
        means, reason = mean_waste(_summaries(members)), _reason(_summaries(members), template)
        if "s" in means:
            yield Waste(name, means)
        elif reason is not None:
            yield Waste(name, {}, reason)


def waterfall(subject: Subject) -> Waterfall | None:
    """None where nothing tells: the verdict is neither FASTER nor SLOWER, or the parts say the opposite of it."""
    best = best_of(subject)
    sides = {Verdict.FASTER: 1, Verdict.SLOWER: -1}
    if best is None or best.verdict not in sides:
        return None
    before, after = (_times(subject.arms.get(name, ())) for name in (subject.baseline, best.candidate))
    if before is None or after is None:
        return None
    side, old, new = sides[best.verdict], sum(before.values()), sum(after.values())
    changes = {part: side * (before[part] - after[part]) for part in PARTS}
    part, least = (choose(PARTS, key=changes.__getitem__) for choose in (max, min))
    change = changes[part]
    if side * (old - new) <= 0 or change <= 0:
        return None
    grew = least if side > 0 and change > old - new and changes[least] < 0 else None
    left = new - after["ideal"]
    return Waterfall(best.candidate, side > 0, old, new, left, part, change, grew, -changes[least])


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

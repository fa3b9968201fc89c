"""Where the step time of a report's arms goes beyond the ideal, and how well planned costs stand for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from dynbench.analysis.measure import lookup
from dynbench.analysis.table_specs import WASTE, mean_waste
from dynbench.analysis.verdict import Verdict
from dynbench.analysis.waste import PARTS, ms_per_kilotoken
from dynbench.experiment import report_texts as texts
from dynbench.experiment.offline_plans import Solved, float_of
from dynbench.experiment.report_arms import SAME
from dynbench.experiment.report_conclusions import best_of
from dynbench.experiment.report_input import Json, Member, ReportInput, mean_of, whole
from dynbench.experiment.report_settings import cost_of, fills_with_padding
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


def waste_facts(subject: ReportInput, template: Template) -> dict[str, object]:
    """What sentences are about."""
    parts = {part: template.label(f"waste.{part}", WASTE[part]) for part in PARTS}
    return {"arms_waste": list(arms_waste(subject, template)), "waterfall": waterfall(subject), "waste_parts": parts}


def arms_waste(subject: ReportInput, template: Template) -> Iterator[Waste]:
    """Of every arm of which it is known, or why it is not."""
    for name, members in subject.arms.items():
        means, reason = mean_waste(_summaries(members)), _reason(_summaries(members), template)
        if "s" in means:
            yield Waste(name, means)
        elif reason is not None:
            yield Waste(name, {}, reason)


def waterfall(subject: ReportInput) -> Waterfall | None:
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


@dataclass(frozen=True)
class CostTypes:
    """Plans of one policy by different costs, by the 95th percentile of what judges them.

    Attributes:
        policy: its name.
        judge: `step_ms`, measured step time; offline a step's largest share, in padded `tokens` or in ms as `measured`.
        p95: by arm, offline by cost.
        costs: arm to its cost; none offline.
    """

    policy: str
    judge: str
    p95: Mapping[str, float]
    costs: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> list[str]:
        """Of the least value, and of those that equal it after rounding."""
        least = min(self.p95.values())
        return [name for name, value in self.p95.items() if value <= least * (1 + SAME)]


def cost_facts(subject: ReportInput, solved: Solved | None) -> dict[str, object]:
    """What sentences are about."""
    baseline = subject.arms[subject.baseline]
    return {
        "row_costs": list(row_costs(subject)),
        "proxy": {key: mean_of(baseline, f"proxy.padded_tokens.{key}") for key in ("correlation", "mape")},
        "cost_types": [*_measured_costs(subject), *(_planned_costs(solved.cost_types) if solved else ())],
    }


def row_costs(subject: ReportInput) -> Iterator[tuple[str, str | None]]:
    """The arms without padding, each with the cost that it was planned with; None where that is not known."""
    for name, members in subject.arms.items():
        rows = [member for member in members if not fills_with_padding(member)]
        if rows:
            yield name, next((cost for member in rows if (cost := cost_of(member, subject))), None)


def _measured_costs(subject: ReportInput) -> Iterator[CostTypes]:
    """Of every policy with arms of several costs."""
    by_policy: dict[str, tuple[dict[str, float], dict[str, str]]] = {}
    refused = {item.candidate for item in subject.comparisons if item.verdict is Verdict.INCOMPARABLE}
    for name, members in subject.arms.items():
        config, p95 = members[0].config or {}, mean_of(members, "step_time_ms.p95")
        policy = config.get("schedule.policy")
        if p95 is not None and policy not in (None, "static") and name not in refused:
            values, costs = by_policy.setdefault(str(policy), ({}, {}))
            values[name], costs[name] = p95, str(config.get("schedule.cost_type"))
    for policy, (values, costs) in by_policy.items():
        if len({*costs.values()}) > 1:
            yield CostTypes(policy, "step_ms", values, costs)


def _planned_costs(lines: Sequence[Json]) -> Iterator[CostTypes]:
    """Of every policy."""
    judge = "measured" if any(line.get("judge") == "measured" for line in lines) else "tokens"
    by_policy: dict[str, dict[str, float]] = {}
    for line in lines:
        p95 = float_of(line.get("p95"))
        if line.get("judge") == judge and p95 is not None:
            by_policy.setdefault(str(line.get("policy")), {})[str(line.get("cost_type"))] = p95
    for policy, found in by_policy.items():
        yield CostTypes(policy, judge, found)

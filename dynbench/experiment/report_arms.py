"""What a report says of the arms beside their tables: how they changed, what they gave back, what was predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from dynbench.analysis.measure import Summaries, lookup
from dynbench.analysis.measures import METRICS, equal_batches
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.table_specs import WASTE, mean_waste
from dynbench.analysis.verdict import Verdict
from dynbench.analysis.waste import PARTS, ms_per_kilotoken
from dynbench.experiment import report_texts as texts
from dynbench.experiment.offline_plans import Solved, float_of, planned_speedup
from dynbench.experiment.report_input import ReportInput, mean_of
from dynbench.experiment.report_texts import loss_difference
from dynbench.report import Template

TOPICS: Mapping[str, str] = {
    "imbalance": "std_over_ranks.padded_tokens.mean",
    "tail": "step_time_ms.p95",
    "memory": "std_over_ranks.peak_mem_mb.mean",
    "peak": "peak_mem_mb.max",
    "traffic": "exposed_comm_ms.mean",
}
"""Name of what is told to the metric that says it; less is better in all."""
UNEQUAL = "std_over_ranks.compute_ms.mean"
"""The imbalance where ranks are unequal: equal times are the aim, not equal tokens."""
SAME = 5e-4
"""Relative changes below this round to 0.0 %."""
PER_STEP = {metric.key for metric in METRICS if metric.of == "step"}


def arms_facts(
    source: ReportInput, solved: Solved | None, best: ComparisonRecord | None, template: Template
) -> dict[str, object]:
    """What sentences are about; `best` is the best arm."""
    predicted = list(predictions(source, solved))
    return {
        "topics": {name: changes(source, name) for name in TOPICS},
        "losses": losses(source),
        "without_ideal": without_ideal(source, template),
        "waterfall": waterfall(source, best),
        "waste_parts": {part: template.label(f"waste.{part}", WASTE[part]) for part in PARTS},
        "cost_types": least_tails(source, solved),
        "predictions": predicted,
        "explained": any(each.by == "plan" or each.item.bound_speedup for each in predicted),
    }


Kind = Literal["less", "more", "same", "unlike", "unknown", "incomparable"]


@dataclass(frozen=True)
class Changes:
    """How the metric of one of `TOPICS`, or `unequal`, changed against the baseline.

    Attributes:
        name: which.
        known: `missing` where no arm measured it, `shared` where arms share what is measured, `alone` where nothing was
            compared.
        groups: how it changed, and the arms in which it did so; better ones first. `unlike` are steps of another global
            batch, which are not held against each other.
    """

    name: str
    known: Literal["compared", "alone", "missing", "shared"]
    groups: Sequence[tuple[Kind, Sequence[str]]] = ()


def changes(source: ReportInput, name: str) -> Changes:
    """Where the metric of a topic got better or worse."""
    metric = TOPICS[name]
    if name == "imbalance" and source.unequal_ranks:
        name, metric = "unequal", UNEQUAL
    if all(mean_of(arm, metric) is None for arm in source.arms.values()):
        return Changes(name, "shared" if any("together" in member.env for member in source.members) else "missing")
    if not source.comparisons:
        return Changes(name, "alone")
    groups: dict[Kind, list[str]] = {}
    for item in source.comparisons:
        groups.setdefault(_change(source, item, metric), []).append(item.candidate)
    return Changes(name, "compared", [(kind, groups[kind]) for kind in get_args(Kind) if kind in groups])


def _change(source: ReportInput, item: ComparisonRecord, metric: str) -> Kind:
    """As the comparison has it, over paired launches, else of the means; nothing is less or more that rounds to 0 %."""
    arms = (item.baseline, item.candidate)
    before, after = (mean_of(source.arms.get(arm, ()), metric) for arm in arms)
    gain = item.improvement_percent.get(metric)
    if item.verdict is Verdict.INCOMPARABLE:
        return "incomparable"
    if gain is not None:
        change = -gain / 100
    elif before is None or after is None:
        return "unknown"
    else:
        change = (after - before) / abs(before) if before else after
    if metric in PER_STEP and not equal_batches(*(source.launches.get(arm, ()) for arm in arms)):
        return "unlike"
    return "same" if abs(change) < SAME else "more" if change > 0 else "less"


def losses(source: ReportInput) -> dict[str, object]:
    """How far the mean training losses are from the baseline's.

    Returns:
        allowed: how far they may be, either way; None where they are to be equal.
        beyond: names of the arms that are farther.
        unknown: names of those of which it is not known, as of a loss that is no number.
        in_a_step: by arm, the largest relative difference of a step, where that was compared.
    """
    allowed, drifts = source.question.loss_drift, {one.candidate: one.loss_drift for one in source.comparisons}
    return {
        "allowed": allowed,
        "beyond": [name for name, drift in drifts.items() if drift is not None and abs(drift) > (allowed or math.inf)],
        "unknown": [name for name, drift in drifts.items() if drift is None],
        "in_a_step": {one.candidate: text for one in source.comparisons if (text := loss_difference(one)) is not None},
    }


def without_ideal(source: ReportInput, template: Template) -> dict[str, list[str]]:
    """Why no ideal step can be stated, in the report's language, to the arms of which that is so.

    Records of earlier versions, which do not ask, have no reason.
    """
    found: dict[str, list[str]] = {}
    for name, summaries in source.launches.items():
        wastes = [waste for summary in summaries if isinstance(waste := summary.get("waste"), Mapping)]
        why = next((waste for waste in wastes if waste.get("reason")), None)
        if why is not None and "s" not in mean_waste(summaries):
            found.setdefault(texts.said(template, why.get("reason_said"), why["reason"]), []).append(name)
    return found


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


def waterfall(source: ReportInput, best: ComparisonRecord | None) -> Waterfall | None:
    """None where nothing tells: the verdict is neither FASTER nor SLOWER, or the parts say the opposite of it."""
    sides = {Verdict.FASTER: 1, Verdict.SLOWER: -1}
    if best is None or best.verdict not in sides:
        return None
    before, after = (_times(source.launches.get(name, ())) for name in (source.baseline, best.candidate))
    if before is None or after is None:
        return None
    side, old, new = sides[best.verdict], sum(before.values()), sum(after.values())
    changed = {part: side * (before[part] - after[part]) for part in PARTS}
    part, least = (choose(PARTS, key=changed.__getitem__) for choose in (max, min))
    change = changed[part]
    if side * (old - new) <= 0 or change <= 0:
        return None
    grew = least if side > 0 and change > old - new and changed[least] < 0 else None
    return Waterfall(best.candidate, side > 0, old, new, new - after["ideal"], part, change, grew, -changed[least])


def _times(summaries: Summaries) -> dict[str, float] | None:
    """The ideal and the parts, ms per 1,000 real tokens, means over launches; None where one does not know them."""
    launches = []
    for summary in summaries:
        time_ms, tokens = lookup(summary, "step_time_ms.total"), lookup(summary, "real_tokens")
        if not isinstance(waste := summary.get("waste"), Mapping) or time_ms is None or tokens is None:
            return None
        if (launch := ms_per_kilotoken(waste, time_ms, tokens)) is None:
            return None
        launches.append(launch)
    return {key: fmean(launch[key] for launch in launches) for key in ("ideal", *PARTS)} if launches else None


def least_tails(source: ReportInput, solved: Solved | None) -> list[tuple[str, str, list[str]]]:
    """Judge, policy, and what has the least 95th percentile of the policy's plans by different costs, or equals it.

    The judge is `step_ms` for the measured step time of arms; for costs that were planned offline it is a step's
    largest share, in padded `tokens` or in ms as `measured`.
    """
    found: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
    refused = {item.candidate for item in source.comparisons if item.verdict is Verdict.INCOMPARABLE}
    for name, members in source.arms.items():
        config, p95 = members[0].config or {}, mean_of(members, "step_time_ms.p95")
        policy, cost = config.get("schedule.policy"), str(config.get("schedule.cost_type"))
        if p95 is not None and policy not in (None, "static") and name not in refused:
            found.setdefault(("step_ms", str(policy)), {})[name] = p95, cost
    lines = solved.cost_types if solved else ()
    judge = "measured" if any(line.get("judge") == "measured" for line in lines) else "tokens"
    for line in lines:
        p95, cost = float_of(line.get("p95")), str(line.get("cost_type"))
        if line.get("judge") == judge and p95 is not None:
            found.setdefault((judge, str(line.get("policy"))), {})[cost] = p95, cost
    return [
        (judge, policy, [name for name, (p95, _) in plans.items() if p95 <= min(plans.values())[0] * (1 + SAME)])
        for (judge, policy), plans in found.items()
        if len({cost for _, cost in plans.values()}) > 1
    ]


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a candidate, and achieved.

    Attributes:
        by: `probe` or `plan`; None where neither does, as plans are not held against times of other samples in a step.
        predicted: speed-up.
        reached: the achieved speed-up over that.
    """

    item: ComparisonRecord
    by: str | None
    predicted: float | None
    reached: float | None


def predictions(source: ReportInput, solved: Solved | None) -> Iterator[Prediction]:
    """The predicted speed-ups of every candidate that could be compared, beside the one achieved."""
    for item in source.comparisons:
        if item.verdict is not Verdict.INCOMPARABLE:
            alike = item.level in ("step", "window")
            planned = planned_speedup(solved, source.baseline, item.candidate) if alike else None
            found = {"probe": item.predicted_speedup, "plan": planned}
            known = {by: value for by, value in found.items() if value is not None}
            for by, value in known.items() or ((None, None),):
                yield Prediction(item, by, value, item.speedup / value if value else None)

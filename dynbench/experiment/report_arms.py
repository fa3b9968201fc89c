"""What a report tells of a comparison: each arm's numbers beside the baseline's, and how they changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dynbench.analysis.metrics import METRICS, equal_batches
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.report_texts import loss_difference
from dynbench.experiment.subject import Subject, mean_of, whole

TOPICS: Mapping[str, tuple[str, str]] = {
    "imbalance": ("std_over_ranks.padded_tokens.mean", "padded_tokens_max.mean"),
    "tail": ("step_time_ms.p95", "step_time_ms.mean"),
    "memory": ("std_over_ranks.peak_mem_mb.mean", "peak_mem_mb.max"),
    "peak": ("peak_mem_mb.max", "std_over_ranks.peak_mem_mb.mean"),
    "traffic": ("exposed_comm_ms.mean", "step_time_ms.mean"),
}
"""Name of what is told to the metric that says it, and the one beside it; less is better in all."""

UNEQUAL = ("std_over_ranks.compute_ms.mean", "std_over_ranks.padded_tokens.mean")
"""The same of the imbalance where ranks are unequal: equal times are the aim, not equal tokens."""

SAME = 5e-4
"""Relative changes below this round to 0.0 %."""

PER_STEP = {metric.key for metric in METRICS if metric.of == "step"}


@dataclass(frozen=True)
class Change:
    """How a value changed.

    Attributes:
        kind: `less`, `more` or `same`; `unlike` where steps of another global batch are not held against each other.
        part: by which part of the value before; None where that was zero.
    """

    kind: Literal["less", "more", "same", "unlike", "unknown"]
    part: float | None
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Line:
    """A candidate, and how both metrics of a topic changed; None where it is not comparable with the baseline."""

    arm: str
    first: Change | None
    second: Change | None


@dataclass(frozen=True)
class Topic:
    """One of `TOPICS`, or `unequal`.

    Attributes:
        name: which.
        known: `missing` where no arm measured it, `shared` where arms share what is measured, `alone` where nothing was
            compared.
        first, second: the metrics under the baseline.
        groups: how the first changed, and the arms in which it did so; better ones first.
        lines: the candidates.
    """

    name: str
    known: Literal["compared", "alone", "missing", "shared"]
    first: float | None
    second: float | None
    groups: list[tuple[str, list[str]]]
    lines: list[Line]


def change(before: float | None, after: float | None) -> Change:
    """How a value changed; nothing is `less` or `more` that rounds to 0.0 %."""
    if before is None or after is None:
        return Change("unknown", None, before, after)
    if before <= 0 and before != after:
        return Change("more" if after > before else "less", None, before, after)
    part = after / before - 1 if before else 0.0
    if abs(part) < SAME:
        return Change("same", 0.0, before, after)
    return Change("more" if part > 0 else "less", abs(part), before, after)


def _changed(comparison: ComparisonRecord, metric: str, found: Change, equal: bool) -> Change:
    """The change as the comparison has it, over paired launches, of a metric of which less is better."""
    gain = comparison.improvement_percent.get(metric)
    if not equal and metric in PER_STEP and (gain is not None or found.kind != "unknown"):
        return replace(found, kind="unlike", part=0.0)
    if gain is None:
        return found
    if abs(gain) < 100 * SAME:
        return replace(found, kind="same", part=0.0)
    return replace(found, kind="less" if gain > 0 else "more", part=abs(gain) / 100)


def topic(subject: Subject, name: str) -> Topic:
    """One of `TOPICS`: under the baseline, where it got better or worse, and every candidate with its numbers."""
    metrics = TOPICS[name]
    if name == "imbalance" and subject.unequal_ranks:
        name, metrics = "unequal", UNEQUAL
    baseline = subject.arms[subject.baseline]
    first, second = (mean_of(baseline, metric) for metric in metrics)
    refused = [item.verdict is Verdict.INCOMPARABLE for item in subject.comparisons]
    if not any(refused) and all(mean_of(arm, key) is None for arm in subject.arms.values() for key in metrics):
        shared = any("together" in member.env for member in subject.members)
        return Topic(name, "shared" if shared else "missing", None, None, [], [])
    groups: dict[str, list[str]] = {}
    lines = []
    for item in subject.comparisons:
        if item.verdict is Verdict.INCOMPARABLE:
            lines.append(Line(item.candidate, None, None))
            continue
        candidate = subject.arms.get(item.candidate, ())
        equal = equal_batches(*([member.summary for member in whole(arm)] for arm in (baseline, candidate)))
        found = [
            _changed(item, metric, change(before, mean_of(candidate, metric)), equal)
            for metric, before in zip(metrics, (first, second), strict=True)
        ]
        groups.setdefault(found[0].kind, []).append(item.candidate)
        lines.append(Line(item.candidate, *found))
    kinds = ("less", "more", "same", "unlike", "unknown")
    known: Literal["compared", "alone"] = "compared" if subject.comparisons else "alone"
    return Topic(name, known, first, second, [(kind, groups[kind]) for kind in kinds if kind in groups], lines)


@dataclass(frozen=True)
class Loss:
    """How far a candidate's loss is from the baseline's.

    Attributes:
        allowed: how far its mean training loss may be.
        in_a_step: the largest relative difference of a step, as tables have it.
        before, after: the last evaluation loss under the baseline and under it.
    """

    item: ComparisonRecord
    allowed: float | None
    in_a_step: str | None
    before: float | None
    after: float | None


def losses(subject: Subject) -> list[Loss]:
    """Every candidate's loss beside the baseline's: in training, in a step, and as evaluated."""
    before = mean_of(subject.arms[subject.baseline], "eval.loss")
    return [
        Loss(
            item, subject.question.loss_drift, loss_difference(item),
            before, mean_of(subject.arms.get(item.candidate, ()), "eval.loss"),
        )
        for item in subject.comparisons
    ]  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a candidate, and achieved.

    Attributes:
        by: `probe`, `plan`, or why there is none: `none`, `otherwise` where plans are not held against times, and
            `incomparable`.
        predicted: speed-up.
        reached: the achieved speed-up over that.
    """

    item: ComparisonRecord
    by: str
    predicted: float | None = None
    reached: float | None = None


def predictions(subject: Subject, solved: Solved | None) -> Iterator[Prediction]:
    """Every candidate's predicted speed-ups beside the one achieved."""
    for item in subject.comparisons:
        if item.verdict is Verdict.INCOMPARABLE:
            yield Prediction(item, "incomparable")
            continue
        # Other steps were planned than were measured, which matters where arms have other samples in a step.
        alike = item.level in ("step", "window")
        planned = planned_speedup(solved, subject.baseline, item.candidate) if alike else None
        known = {"probe": item.predicted_speedup, "plan": planned}
        for by, value in known.items():
            if value is not None:
                yield Prediction(item, by, value, item.speedup / value if value else None)
        if all(value is None for value in known.values()):
            yield Prediction(item, "none" if alike else "otherwise")


def planning(subject: Subject) -> list[tuple[str, float]]:
    """The part of the step time that planning takes, by arm: of the only one that plans, or the least and the most."""
    shares = {
        name: share
        for name, members in subject.arms.items()
        if (members[0].config or {}).get("schedule.mode") == "dynamic"
        if (share := mean_of(members, "plan_fraction")) is not None
    }
    if len(shares) < 2:
        return list(shares.items())
    return [choose(shares.items(), key=lambda each: each[1]) for choose in (min, max)]

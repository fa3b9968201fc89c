"""What communication cost each arm, by operation, by bucket size and in profiles, and why strategies differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from dynbench.analysis.buckets import (
    EXPLAINS,
    BucketFit,
    BucketPoint,
    bears_out,
    bucket_point,
    fastest,
    fewest,
    fit_buckets,
    nearest,
    sizes_differ,
)
from dynbench.analysis.measure import Launches, lookup
from dynbench.analysis.metrics import workers_of
from dynbench.analysis.profile import Bottleneck, bottlenecks
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.subject import Subject, mean_of, whole
from dynbench.units import mb

_KEYS = {
    "null": "against_null.exposed_ms",
    "more": "against_null.sync_ms",
    "compute": "against_null.compute_ms",
    "optimizer": "against_null.optimizer_ms",
    "other": "against_null.other_ms",
    "sync": "exposed_comm_ms.mean",
}
"""Number of an arm that took turns with a step without communication to its key in a summary."""
PAIRS: Mapping[str, tuple[str, str]] = {
    "flat": ("naive", "flat"),
    "overlap": ("naive", "overlap"),
    "zero1": ("ddp", "zero1"),
    "zero1_torch": ("zero1", "zero1_torch"),
    "fsdp": ("ddp", "fsdp"),
}
"""Sentence to the strategies that it holds against each other."""
NUMBERS: Mapping[str, str] = {
    "step": "step_time_ms.mean",
    "calls": "collectives.mean",
    "transfer": "comm_transfer_ms.mean",
    "comm": "comm_ms.mean",
    "exposed": "exposed_comm_ms.mean",
    "beyond": "exposed_vs_null_ms.mean",
    "compute": "time_ms.compute",
    "flatten": "timed_ms.workers.flatten_ms",
    "unflatten": "timed_ms.workers.unflatten_ms",
    "optimizer": "memory_parts.after_step.optimizer_mb",
    "gradients": "memory_parts.after_step.gradients_mb",
    "parameters": "memory_parts.after_step.parameters_mb",
    "buffers": "memory_parts.after_step.strategy_mb",
}
"""Number of an arm to its key in a summary."""


def launches_of(subject: Subject) -> Launches:
    """Name of the arm to the summaries of the launches that tables show."""
    return {name: [member.summary for member in whole(members)] for name, members in subject.arms.items()}


def exposures(subject: Subject) -> Iterator[dict[str, object]]:
    """Of every arm that took turns with a step without communication: its name and the means of `_KEYS`, ms."""
    for name, summaries in launches_of(subject).items():
        told = ([value for key in _KEYS.values() if (value := lookup(one, key)) is not None] for one in summaries)
        known = [launch for launch in told if len(launch) == len(_KEYS)]
        if known:
            yield {"arm": name, **dict(zip(_KEYS, map(fmean, zip(*known, strict=True)), strict=True))}


def why_not_exposed(subject: Subject) -> Literal["virtual", "served", "unknown"]:
    """Why no step without communication was measured: none of the arms can, or nobody asked."""
    summaries = [member.summary for member in subject.members]
    if all(summary.get("launcher") == "virtual" for summary in summaries):
        return "virtual"
    return "served" if all(workers_of(one) != lookup(one, "world_size") for one in summaries) else "unknown"


@dataclass(frozen=True)
class Buckets:
    """What there is to say of the size of buckets.

    Attributes:
        fit: the model.
        least, most, fewest: the arms whose step takes least and most, and the one with the fewest buckets.
        near: the arm nearest to the best size; None where the model has none.
        untold: the other arms that launches do not tell from the one whose step takes least.
        counts: different numbers of buckets.
        gb_per_s: of the all-reduces of `fewest` while they transfer.
        case: whether a best size is named (`best`), the model has none (`no_bandwidth`, `no_call`), or why it does not
            hold: it explains too little (`poor`), nothing as overheads are alike (`alike_overheads`), the arms
            contradict it, or computing and sending are not as long (`computing`, `sending`, `assumed`).
        limit: R² below which the model explains too little.
    """

    fit: BucketFit
    least: BucketPoint
    most: BucketPoint
    fewest: BucketPoint
    near: BucketPoint | None
    untold: Sequence[str]
    counts: int
    gb_per_s: float | None
    case: str
    limit: float = EXPLAINS


def points_of(subject: Subject) -> list[BucketPoint]:
    """The arms whose gradients are all-reduced in buckets."""
    found = (
        bucket_point(name, members[0].config, [member.summary for member in whole(members)])
        for name, members in subject.arms.items()
        if members[0].config is not None
    )
    return [point for point in found if point is not None]


def buckets_told(subject: Subject) -> bool:
    """Whether arms differ enough in buckets that a chapter is about them."""
    return subject.question.name == "sync" and sizes_differ(points_of(subject)) and _fit(subject) is not None


def buckets_of(subject: Subject) -> Buckets | None:
    """None where arms do not differ enough in buckets."""
    fit, points = _fit(subject), points_of(subject)
    if not buckets_told(subject) or fit is None:
        return None
    least, most, one = fastest(points), max(points, key=lambda point: point.step_ms), fewest(points)
    near = None if fit.best_bytes is None else nearest(points, fit.best_bytes)
    counts, speed = len({round(point.calls) for point in points}), _speed(subject, one.arm)
    return Buckets(fit, least, most, one, near, _untold(subject, least, points), counts, speed, _case(points, fit))


def _case(points: Sequence[BucketPoint], fit: BucketFit) -> str:
    if not fit.explains:
        return "poor" if fit.r_squared is not None else "alike_overheads"
    if not bears_out(points, fit):
        assumption = fastest(points).assumption
        return "contradicted" if assumption == "alike" else assumption
    return "best" if fit.best_bytes else "no_bandwidth" if fit.call_ms else "no_call"


def _untold(subject: Subject, least: BucketPoint, points: Sequence[BucketPoint]) -> list[str]:
    """The other arms in buckets that launches do not tell from the one whose step takes least."""
    judged = [*subject.comparisons, *(pair for pair in subject.pairs if pair.spread != "pooled")]
    slower = {(item.candidate, item.baseline) for item in judged if item.verdict is Verdict.SLOWER}
    slower |= {(item.baseline, item.candidate) for item in judged if item.verdict is Verdict.FASTER}
    return [point.arm for point in points if point is not least and (point.arm, least.arm) not in slower]


def _fit(subject: Subject) -> BucketFit | None:
    return fit_buckets(points_of(subject))


def _speed(subject: Subject, arm: str) -> float | None:
    """Bytes per second of an arm's all-reduces while they transfer, GB/s."""
    told = (member.summary.get("by_operation") for member in whole(subject.arms[arm]))
    found = [
        value
        for rows in told
        if isinstance(rows, list)
        for row in rows
        if row["operation"] == "all_reduce" and (value := lookup(row, "gb_per_s")) is not None
    ]
    return fmean(found) if found else None


def profile_facts(subject: Subject) -> dict[str, object]:
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


def strategies_told(subject: Subject) -> bool:
    """Whether some pair of strategies is there that a sentence is about."""
    return subject.question.name == "sync" and any(_pairs(subject))


def strategy_pairs(subject: Subject) -> list[tuple[str, dict[str, object], dict[str, object]]]:
    """Sentence, and the numbers of the arms that it is about."""
    return [(key, _numbers(subject, one), _numbers(subject, other)) for key, one, other in _pairs(subject)]


def _pairs(subject: Subject) -> list[tuple[str, str, str]]:
    """Sentence, and the arms that it is about: the first of each strategy."""
    arms: dict[str, str] = {}
    for name, members in subject.arms.items():
        if members[0].config is not None:
            arms.setdefault(str(members[0].config.get("sync.name")), name)
    return [(key, arms[one], arms[other]) for key, (one, other) in PAIRS.items() if one in arms and other in arms]


def _numbers(subject: Subject, arm: str) -> dict[str, object]:
    members = subject.arms[arm]
    wire = mean_of(members, "bytes_wire.mean")
    return {
        **{what: mean_of(members, key) for what, key in NUMBERS.items()},
        "name": arm,
        "hidden": mean_of(members, "overlap_fraction"),
        "wire_mb": None if wire is None else mb(wire),
        "counted": mean_of(members, "bytes_sent_ratio"),
    }

"""What the size of buckets cost, arm by arm, and what a model of bandwidth and overhead says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

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
from dynbench.analysis.metrics import lookup
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.subject import Subject, whole


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

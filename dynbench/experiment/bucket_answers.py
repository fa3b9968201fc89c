"""What the size of buckets cost, arm by arm, and what a model of bandwidth and overhead says of it."""

from __future__ import annotations

from collections.abc import Sequence

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
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import number
from dynbench.experiment.subject import Subject, whole
from dynbench.units import mib

OWN = tuple(
    f"bucket.{what}"
    for what in (
        *("least", "least_ms", "most", "most_ms", "s", "o", "w", "r2", "best", "near", "near_size", "near_ms"),
        *("near_fit", "near_step", "limit", "compute", "transfer", "speed", "counts", "fewest", "fewest_ms", "untold"),
    )
)
"""Placeholders that only the sentences of this module use."""


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


def bucket_sentences(speaker: Speaker) -> str:
    """Least and most, the model with where its numbers are from, the best size, and whether this was expected."""
    subject = speaker.subject
    fit, points = _fit(subject), points_of(subject)
    if not buckets_told(subject) or fit is None:
        return ""
    least, most, one = fastest(points), max(points, key=lambda point: point.step_ms), fewest(points)
    untold = _untold(subject, least, points)
    own: dict[str, str | None] = {
        "bucket_least": f"`{least.arm}`",
        "bucket_least_ms": number(least.step_ms),
        "bucket_most": f"`{most.arm}`",
        "bucket_most_ms": number(most.step_ms),
        "bucket_s": number(fit.total / 1e6),
        "bucket_o": number(fit.call_ms),
        "bucket_w": None if fit.bytes_per_ms is None else number(fit.bytes_per_ms / 1e6),
        "bucket_r2": None if fit.r_squared is None else f"{fit.r_squared:.2f}",
        "bucket_counts": str(len({round(point.calls) for point in points})),
        "bucket_speed": _speed(subject, one.arm),
        "bucket_fewest": f"`{one.arm}`",
        "bucket_fewest_ms": number(one.overhead_ms),
        "bucket_compute": number(least.compute_ms),
        "bucket_transfer": number(least.transfer_ms),
        "bucket_untold": ", ".join(f"`{name}`" for name in untold),
    }
    ends = ["ends", *(["untold"] if untold else []), "launched"]
    lines = [" ".join(speaker.say(f"answers.buckets.{key}", **own).strip() for key in ends)]
    if not fit.explains:
        varies = "poor" if fit.r_squared is not None else "alike_overheads"
        return "\n\n".join([*lines, speaker.say(f"answers.buckets.{varies}", bucket_limit=f"{EXPLAINS:g}", **own)])
    lines.append(speaker.say("answers.buckets.from", **own))
    if fit.best_bytes is not None:
        near = nearest(points, fit.best_bytes)
        own |= {
            "bucket_best": number(mib(fit.best_bytes)),
            "bucket_near": f"`{near.arm}`",
            "bucket_near_size": number(mib(near.total / near.calls)),
            "bucket_near_ms": number(near.overhead_ms),
            "bucket_near_fit": number(fit.overhead_ms(near.calls)),
            "bucket_near_step": number(near.step_ms),
        }
    keys: list[str]
    if not bears_out(points, fit):
        keys = ["contradicted" if least.assumption == "alike" else least.assumption]
    else:
        keys = ["best" if fit.best_bytes else "no_bandwidth" if fit.call_ms else "no_call", "alike"]
    return "\n\n".join([*lines, *(speaker.say(f"answers.buckets.{key}", **own) for key in keys)])


def _untold(subject: Subject, least: BucketPoint, points: Sequence[BucketPoint]) -> list[str]:
    """The other arms in buckets that launches do not tell from the one whose step takes least."""
    judged = [*subject.comparisons, *(pair for pair in subject.pairs if pair.spread != "pooled")]
    slower = {(item.candidate, item.baseline) for item in judged if item.verdict is Verdict.SLOWER}
    slower |= {(item.baseline, item.candidate) for item in judged if item.verdict is Verdict.FASTER}
    return [point.arm for point in points if point is not least and (point.arm, least.arm) not in slower]


def _fit(subject: Subject) -> BucketFit | None:
    return fit_buckets(points_of(subject))


def _speed(subject: Subject, arm: str) -> str | None:
    """Bytes per second of an arm's all-reduces while they transfer, GB/s."""
    told = (member.summary.get("by_operation") for member in whole(subject.arms[arm]))
    found = [
        value
        for rows in told
        if isinstance(rows, list)
        for row in rows
        if row["operation"] == "all_reduce" and (value := lookup(row, "gb_per_s")) is not None
    ]
    return number(sum(found) / len(found)) if found else None

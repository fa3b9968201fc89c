"""What communication cost: beyond a step without it, in profiles, in buckets, by strategy, and through a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from dynbench.analysis import links as buckets
from dynbench.analysis.links import BucketFit, BucketPoint
from dynbench.analysis.measures import workers_of
from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import Json, ReportInput, mean_of

_EXPOSED = {
    "null": "against_null.exposed_ms",
    "more": "against_null.sync_ms",
    "compute": "against_null.compute_ms",
    "optimizer": "against_null.optimizer_ms",
    "other": "against_null.other_ms",
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
    "comm": "comm_ms.mean",
    "exposed": "exposed_comm_ms.mean",
    "beyond": "exposed_vs_null_ms.mean",
    "calls": "collectives.mean",
    "transfer": "comm_transfer_ms.mean",
    "hidden": "overlap_fraction",
    "compute": "time_ms.compute",
    "flatten": "timed_ms.workers.flatten_ms",
    "unflatten": "timed_ms.workers.unflatten_ms",
    "wire_bytes": "bytes_wire.mean",
    "counted": "bytes_sent_ratio",
    "optimizer": "memory_parts.after_step.optimizer_mb",
    "gradients": "memory_parts.after_step.gradients_mb",
    "parameters": "memory_parts.after_step.parameters_mb",
    "buffers": "memory_parts.after_step.strategy_mb",
}
"""Number of an arm to its key in a summary."""
STEPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "compute": ("Replica", ("time_ms.compute",)),
    "push": ("ParameterServer.finish", ("timed_ms.workers.push_ms",)),
    "receive": ("ParameterServer.serve", ("timed_ms.servers.receive_ms",)),
    "average": ("ParameterServer.serve", ("timed_ms.servers.average_ms",)),
    "update": ("ParameterServer.step", ("timed_ms.servers.optimizer_ms",)),
    "pull": ("ParameterServer.step", ("timed_ms.servers.send_ms", "timed_ms.workers.pull_ms")),
}
"""Step of a server's batch to the code that does it, and where a summary has its time on one side or on both."""


def communication_facts(source: ReportInput) -> dict[str, object]:
    """What sentences are about."""
    profiled = bottlenecks(source.launches)
    return {
        "profiled": {
            "communication": [one.arm for one in profiled if one.is_communication],
            "computing": [one.arm for one in profiled if not one.is_communication],
        },
        "exposures": exposures(source),
        "buckets": buckets_of(source),
        "strategy_pairs": strategy_pairs(source),
        "served": served_arms(source),
        "training_s": training_s(source),
        "order_found": order_of(source),
    }


def exposures(source: ReportInput) -> dict[str, dict[str, float | None]]:
    """Of every arm that took turns with a step without communication: the means of `_EXPOSED`, ms."""
    found = {
        name: {what: mean_of(members, key) for what, key in _EXPOSED.items()} for name, members in source.arms.items()
    }
    return {name: means for name, means in found.items() if None not in means.values()}


@dataclass(frozen=True)
class Buckets:
    """What there is to say of the size of buckets.

    Attributes:
        points: the arms whose gradients are all-reduced in buckets.
        fit: the model.
        least: the arm whose step takes least.
        near: the arm nearest to the best size; None where the model has none.
        near_ms: its overhead by the model.
        untold: the other arms that launches do not tell from the one whose step takes least.
        case: whether a best size is named (`best`), the model has none (`no_bandwidth`, `no_call`), or why it does not
            hold: it explains too little (`poor`), nothing as overheads are alike (`alike_overheads`), the arms
            contradict it, or computing and sending are not as long (`computing`, `sending`, `assumed`).
    """

    points: Sequence[BucketPoint]
    fit: BucketFit
    least: BucketPoint
    near: BucketPoint | None
    near_ms: float | None
    untold: Sequence[str]
    case: str


def _bucket_points(source: ReportInput) -> list[BucketPoint]:
    found = (
        buckets.bucket_point(name, config, source.launches[name])
        for name, members in source.arms.items()
        if (config := members[0].config) is not None
    )
    return [point for point in found if point is not None]


def buckets_of(source: ReportInput) -> Buckets | None:
    """None where the question is another one, or arms do not differ enough in buckets."""
    points = _bucket_points(source)
    fit = buckets.fit_buckets(points)
    if source.question.name != "sync" or not buckets.sizes_differ(points) or fit is None:
        return None
    least, faster = buckets.fastest(points), _faster(source)
    near = None if fit.best_bytes is None else buckets.nearest(points, fit.best_bytes)
    return Buckets(
        points,
        fit,
        least,
        near,
        None if near is None else fit.overhead_ms(near.calls),
        [point.arm for point in points if point is not least and (least.arm, point.arm) not in faster],
        _case(points, fit),
    )


def _case(points: Sequence[BucketPoint], fit: BucketFit) -> str:
    if not fit.explains:
        return "poor" if fit.r_squared is not None else "alike_overheads"
    if not buckets.bears_out(points, fit):
        assumption = buckets.fastest(points).assumption
        return "contradicted" if assumption == "alike" else assumption
    return "best" if fit.best_bytes else "no_bandwidth" if fit.call_ms else "no_call"


def _faster(source: ReportInput) -> set[tuple[str, str]]:
    """Pairs of arms of which the verdict says that the first is faster.

    Pairs judged by a spread that earlier versions pooled over arms are left out, as it tells equal arms apart.
    """
    judged = [*source.comparisons, *(pair for pair in source.pairs if pair.spread != "pooled")]
    ahead = {(item.candidate, item.baseline) for item in judged if item.verdict is Verdict.FASTER}
    return ahead | {(item.baseline, item.candidate) for item in judged if item.verdict is Verdict.SLOWER}


def strategy_pairs(source: ReportInput) -> list[tuple[str, Json, Json]]:
    """Sentence, and the numbers of both arms that it is about, the first of each strategy; none of other questions."""
    arms: dict[str, str] = {}
    for name, members in source.arms.items() if source.question.name == "sync" else ():
        if members[0].config is not None:
            arms.setdefault(str(members[0].config.get("sync.name")), name)

    numbers = {
        strategy: {"name": name, **{what: mean_of(source.arms[name], key) for what, key in NUMBERS.items()}}
        for strategy, name in arms.items()
    }
    return [(key, numbers[a], numbers[b]) for key, (a, b) in PAIRS.items() if a in arms and b in arms]


def served_arms(source: ReportInput) -> list[str]:
    """Names of the arms of which a rank serves."""
    return [name for name, members in source.arms.items() if any(member.serves for member in members)]


def training_s(source: ReportInput) -> dict[str, float]:
    """Seconds of all epochs, mean over launches, of the arms that trained whole epochs."""
    found: dict[str, float] = {}
    for name, summaries in source.launches.items():
        epochs = (summary.get("epochs") for summary in summaries)
        known = [each for one in epochs if isinstance(one, Mapping) and (each := one.get("each"))]
        if known:
            found[name] = fmean(sum(epoch["train_s"] for epoch in each) for each in known)
    return found


@dataclass(frozen=True)
class Order:
    """Whether ddp is faster than an all-reduce by hand, and this than a server, at the baseline's number of workers.

    Attributes:
        expected: arms in that order.
        against: pairs of arms of two of these kinds of which the verdict says that the second is faster.
        untold: those of which no verdict says that one is.
    """

    expected: Sequence[str]
    against: Sequence[tuple[str, str]]
    untold: Sequence[tuple[str, str]]


def order_of(source: ReportInput) -> Order | None:
    """None where all arms are of one kind."""
    served, workers, faster = served_arms(source), workers_of(source.first.summary), _faster(source)
    kinds = {
        name: 2 if name in served else 0 if name == source.baseline else 1
        for name, members in source.arms.items()
        if workers_of(members[0].summary) == workers
    }
    if len({*kinds.values()}) < 2:
        return None
    expected = sorted(kinds, key=kinds.__getitem__)
    claimed = [(one, other) for one, other in combinations(expected, 2) if kinds[one] < kinds[other]]
    against = [pair for pair in claimed if pair[::-1] in faster]
    return Order(expected, against, [pair for pair in claimed if pair not in faster and pair not in against])

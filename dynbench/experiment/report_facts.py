"""What a report says of arms beside their tables: changes, predictions, communication, the tail of step times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from dynbench.analysis.buckets import BucketFit, BucketPoint, bucket_point, fit_buckets, nearest
from dynbench.analysis.evaluations import Epoch
from dynbench.analysis.link_map import LinkMap, link_map, link_point
from dynbench.analysis.measure import Summaries, known_values
from dynbench.analysis.measures import workers_of
from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.record import ComparisonRecord, TailRecord
from dynbench.analysis.stats import FEWEST_PAIRS
from dynbench.analysis.table_specs import WASTE, mean_waste
from dynbench.analysis.topology import Against, against, agreements, busiest
from dynbench.analysis.verdict import LEAST_TOLERANCE, Verdict
from dynbench.analysis.waste import PARTS, ms_per_kilotoken
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.report_input import Json, ReportInput, in_language, mean_of, whole
from dynbench.report import Template


def arms_facts(
    source: ReportInput, solved: Solved | None, best: ComparisonRecord | None, template: Template
) -> dict[str, object]:
    """What sentences are about; `best` is the best arm."""
    predicted = list(predictions(source, solved))
    return {
        "loss_drift": source.question.loss_drift,
        "without_ideal": without_ideal(source, template),
        "waterfall": waterfall(source, best),
        "waste_parts": {part: template.label(f"waste.{part}", WASTE[part]) for part in PARTS},
        "predictions": predicted,
        "explained": any(each.by == "plan" or each.item.bound_speedup for each in predicted),
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
            found.setdefault(in_language(template, why.get("reason_said"), why["reason"]), []).append(name)
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
    """

    candidate: str
    faster: bool
    before: float
    after: float
    left: float
    part: str
    change: float


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
    part = max(PARTS, key=changed.__getitem__)
    if side * (old - new) <= 0 or changed[part] <= 0:
        return None
    return Waterfall(best.candidate, side > 0, old, new, new - after["ideal"], part, changed[part])


def _times(summaries: Summaries) -> dict[str, float] | None:
    """The ideal and the parts, ms per 1,000 real tokens, means over launches; None where one does not know them."""
    launches = [found for each in summaries if (found := ms_per_kilotoken(each)) is not None]
    known = launches and len(launches) == len(summaries)
    return {key: fmean(launch[key] for launch in launches) for key in launches[0]} if known else None


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
        "link_map": link_map_of(source),
        "strategy_pairs": strategy_pairs(source),
        "training_s": training_s(source),
        "topology": topology(source),
        "agreements": list(agreements(*_epochs(source), source.question.loss_drift or LEAST_TOLERANCE)),
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
        near: the arm nearest to the best size; None where the model names none.
        undecided: the other arms that launches do not tell from the one whose step takes least.
        fewest: the arm with the fewest buckets, of whose transfer the least has computing beside it.
        moving: part of its transfer in which the back end moved bytes itself, where the rest is an emulated link's;
            None without one, or without profiles.
    """

    points: Sequence[BucketPoint]
    fit: BucketFit
    least: BucketPoint
    near: BucketPoint | None
    undecided: Sequence[str]
    fewest: BucketPoint
    moving: float | None


def buckets_of(source: ReportInput) -> Buckets | None:
    """None where the question is another one, or arms do not differ enough in buckets."""
    found = (
        bucket_point(name, config, source.launches[name])
        for name, members in source.arms.items()
        if source.question.name == "sync" and (config := members[0].config) is not None
    )
    points = [point for point in found if point is not None]
    if (fit := fit_buckets(points)) is None:
        return None
    least, faster = min(points, key=lambda point: point.step_ms), _faster(source)
    fewest = min(points, key=lambda point: point.calls)
    near = None if fit.best_bytes is None else nearest(points, fit.best_bytes)
    undecided = [point.arm for point in points if point is not least and (least.arm, point.arm) not in faster]
    return Buckets(points, fit, least, near, undecided, fewest, _moving(source, fewest.arm))


def _moving(source: ReportInput, arm: str) -> float | None:
    transfer, profiled = mean_of(source.arms[arm], "comm_transfer_ms.mean"), bottlenecks({arm: source.launches[arm]})
    emulated = (source.arms[arm][0].config or {}).get("launch.link_gbps")
    return profiled[0].share * profiled[0].step_ms / transfer if emulated and profiled and transfer else None


def link_map_of(source: ReportInput) -> LinkMap | None:
    """Of arms over emulated links, and some without; None of others."""
    found = (
        link_point(name, config, source.launches[name])
        for name, members in source.arms.items()
        if (config := members[0].config) is not None
    )
    return link_map([point for point in found if point is not None])


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


def topology(source: ReportInput) -> list[tuple[Against, bool]]:
    """Arms held against each other by what their busiest processes do, and whether launches tell their times apart."""
    told = {frozenset(pair) for pair in _faster(source)}
    return [(pair, frozenset((pair.one.arm, pair.other.arm)) in told) for pair in against(busiest(source.launches))]


def _epochs(source: ReportInput) -> tuple[dict[str, dict[object, Sequence[Epoch]]], dict[str, int]]:
    """Of every arm that trained whole epochs, these by the launch's seed, and how many of its ranks train."""
    found = {
        name: {
            (member.config or {}).get("train.seed"): trained["each"]
            for member in whole(members)
            if isinstance(trained := member.summary.get("epochs"), Mapping)
        }
        for name, members in source.arms.items()
    }
    known = {name: launches for name, launches in found.items() if launches}
    return known, {name: workers_of(source.arms[name][0].summary) or 0 for name in known}


def training_s(source: ReportInput) -> dict[str, float]:
    """Seconds of all epochs, mean over launches, of the arms that trained whole epochs."""
    found: dict[str, float] = {}
    for name, summaries in source.launches.items():
        epochs = (summary.get("epochs") for summary in summaries)
        known = [each for one in epochs if isinstance(one, Mapping) and (each := one.get("each"))]
        if known:
            found[name] = fmean(sum(epoch["train_s"] for epoch in each) for each in known)
    return found


P95 = "step_time_ms.p95"
COST_TYPE = "schedule.cost_type"
UNDECIDED = (Verdict.AMBIGUOUS, Verdict.ESTIMATE)


@dataclass(frozen=True)
class CostTypes:
    """Arms that differ in nothing but the cost that their plans minimise.

    Attributes:
        policy: of all of them.
        least: the arm whose P95 is smallest.
        others: the other arms, each with its P95 against the least.
        noise: differences below this part count as none.
    """

    policy: str
    least: str
    others: Mapping[str, TailRecord]
    noise: float

    @property
    def undecided(self) -> Mapping[str, TailRecord]:
        """Arms that launches do not tell from the one whose P95 is smallest."""
        return {name: tail for name, tail in self.others.items() if tail.verdict in UNDECIDED}

    def judged(self, verdict: str) -> Mapping[str, TailRecord]:
        """Arms against which the least has a verdict."""
        return {name: tail for name, tail in self.others.items() if tail.verdict == verdict}


def shown_tail(item: ComparisonRecord) -> TailRecord | None:
    """As reports show it: an estimate where launches are too few for an interval that says anything."""
    if item.tail is None or item.launches >= FEWEST_PAIRS:
        return item.tail
    return item.tail.model_copy(update={"interval": None, "verdict": Verdict.ESTIMATE})


def tail_facts(source: ReportInput) -> dict[str, object]:
    """What sentences are about: P95 of each arm against the baseline, by verdict, and of arms that differ in costs."""
    tails = {item.candidate: tail for item in source.comparisons if (tail := shown_tail(item)) is not None}
    by_verdict = {verdict.value: {n: t for n, t in tails.items() if t.verdict is verdict} for verdict in Verdict}
    return {"tails": by_verdict if tails else None, "cost_tails": list(cost_types(source))}


def cost_types(source: ReportInput) -> Iterator[CostTypes]:
    """The groups of arms that differ in their cost type alone, where P95 was compared."""
    pairs = [pair for pair in source.pairs if pair.compared.keys() == {COST_TYPE} and pair.tail is not None]
    left = list(dict.fromkeys(name for pair in pairs for name in (pair.baseline, pair.candidate)))
    while left:
        group = [left[0], *(name for name in left[1:] if _between(pairs, left[0], name) is not None)]
        left = [name for name in left if name not in group]
        least = min(group, key=lambda name: geometric_mean(known_values(source.launches[name], P95)))
        against = {name: _between(pairs, name, least) for name in group if name != least}
        policy = str((source.arms[least][0].config or {}).get("schedule.policy"))
        yield CostTypes(policy, least, {n: t for n, t in against.items() if t is not None}, pairs[0].noise_threshold)


def _between(pairs: Sequence[ComparisonRecord], other: str, arm: str) -> TailRecord | None:
    """P95 of an arm against that of another, which of the two was the baseline in whichever order."""
    for pair in pairs:
        if (tail := shown_tail(pair)) is not None and {pair.baseline, pair.candidate} == {other, arm}:
            return tail if pair.candidate == arm else tail.turned
    return None

"""What a comparison comes to: the best arm, whether it is the same training as the baseline, and what is in doubt.

Speed alone recommends nothing: an arm that trains something else is named with the reason, beside the best one that is
the same training; and where checks put the numbers of a verdict in doubt, what to do about it comes first. Compressors
are concluded by bytes and quality, as their time is that of one link; fewer steps and rows without padding by losses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Literal

from dynbench.analysis.links import faster_gbps, spans_text
from dynbench.analysis.measure import lookup
from dynbench.analysis.record import ComparisonRecord, Finding
from dynbench.analysis.stats import mean_interval
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import Member, ReportInput, finding_texts, mean_of, whole
from dynbench.plugins import STRATEGIES
from dynbench.report import Template
from dynbench.table_text import Label

WITHIN = 0.01
"""Of the baseline's, by how much the upper end of an arm's interval may be above it."""
MEASURES = ("perplexity", "loss")
"""Keys of a summary's `eval`, of which the first that all launches have is reported."""
LEAST = 1e-3
"""Part of the baseline's loss that counts as no change of it."""

Launch = tuple[object, int]
"""Seed of a launch, and which one of that seed it is."""


@dataclass(frozen=True)
class Quality:
    """How good the models of an arm became.

    Attributes:
        values: launch to its last evaluation.
        compression: bytes of gradients over bytes sent of them, mean over launches; None where it is not known.
        traffic: the same of all that is sent.
        change: relative change against the baseline's of the same seed, mean and interval; None of the baseline, of
            what does as the baseline does, and of fewer than two launches.
        difference: the same, not relative.
    """

    values: Mapping[Launch, float]
    compression: float | None
    traffic: float | None
    change: tuple[float, float, float] | None
    difference: tuple[float, float, float] | None

    @property
    def judgement(self) -> Literal["within", "beyond", "open"] | None:
        """Whether the whole interval is within, or above, what is allowed."""
        if self.change is None:
            return None
        _, low, high = self.change
        return "within" if high <= WITHIN else "beyond" if low > WITHIN else "open"


def qualities(source: ReportInput) -> tuple[str | None, dict[str, Quality]]:
    """By which of `MEASURES` the arms were evaluated, and each; None and no arm where some launch was not."""
    for measure in MEASURES:
        found = {name: _by_launch(whole(members), f"eval.{measure}") for name, members in source.arms.items()}
        known = {name: values for name, values in found.items() if values}
        if len(known) == len(source.arms):
            base = known[source.baseline]
            return measure, {
                name: _quality(source.arms[name], values, None if name == source.baseline else base)
                for name, values in known.items()
            }
    return None, {}


def _quality(members: Sequence[Member], values: Mapping[Launch, float], base: Mapping[Launch, float] | None) -> Quality:
    pairs = [(values[launch], before) for launch, before in (base or {}).items() if launch in values and before]
    known = len(pairs) > 1 and not never_compressed(members)
    change, difference = (
        mean_interval(changes) if known else None
        for changes in ([after / before - 1 for after, before in pairs], [after - before for after, before in pairs])
    )
    gradients, traffic = (mean_of(members, key) for key in ("compression_ratio", "traffic_compression_ratio"))
    return Quality(values, gradients, traffic, change, difference)


def never_compressed(members: Sequence[Member]) -> bool:
    """Whether an arm's compressor starts after its last step, so that it trains as it would without."""
    first = next(iter(whole(members)), None)
    if first is None:
        return False
    start, steps = (first.config or {}).get("compress.start_step"), lookup(first.summary, "steps")
    ran = None if steps is None else steps + (lookup(first.summary, "warmup_steps") or 0)
    return isinstance(start, int) and ran is not None and 0 < ran <= start


def _by_launch(members: Sequence[Member], key: str) -> dict[Launch, float] | None:
    """A number of the summaries of an arm; None where one lacks it."""
    found: dict[Launch, float] = {}
    seen: Counter[object] = Counter()
    for member in members:
        value, seed = lookup(member.summary, key), (member.config or {}).get("train.seed")
        if value is None:
            return None
        found[seed, seen[seed]] = value
        seen[seed] += 1
    return found


@dataclass(frozen=True)
class Trained:
    """What came of an arm.

    Attributes:
        padded: whether it pads.
        batch: samples per step.
        steps: optimizer steps, those of the warm-up included.
        losses: launch to the last evaluation loss.
    """

    padded: bool
    batch: int
    steps: int
    losses: Mapping[Launch, float]


@dataclass(frozen=True)
class Effect:
    """A change of the evaluation loss: its mean over seeds, and both ends of its interval.

    Attributes:
        margin: change of the loss that counts as none.
    """

    mean: float
    low: float
    high: float
    margin: float

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high end."""
        return self.low, self.high

    @property
    def judgement(self) -> Literal["costs", "least", "none", "gains", "open"]:
        """By the whole interval: worse by more than the margin or by any part; within it; better; or not told."""
        if -self.margin <= self.low and self.high <= self.margin:
            return "none"
        if self.low > 0:
            return "costs" if self.low > self.margin else "least"
        return "gains" if self.high < 0 else "open"


@dataclass(frozen=True)
class Effects:
    """What fewer steps and rows without padding do to the loss, over as many samples.

    Attributes:
        fewer, rows: the two effects.
    """

    fewer: Effect
    rows: Effect


def steps_effects(source: ReportInput) -> Effects | Literal["unequal", "unknown"]:
    """What each of the two does to the loss, as far as the launches tell; or why there is no telling."""
    arms = trained(source)
    if arms is None:
        return "unknown"
    known = list(arms.values())
    if len({arm.batch * arm.steps for arm in known}) > 1:
        return "unequal"
    margin = LEAST * fmean(arms[source.baseline].losses.values())
    couples = list(product(known, known))
    fewer = _effect(((a, b) for a, b in couples if a.padded == b.padded and b.steps < a.steps), margin)
    rows = _effect(((a, b) for a, b in couples if a.padded and not b.padded and b.steps == a.steps), margin)
    return "unknown" if fewer is None or rows is None else Effects(fewer, rows)


def trained(source: ReportInput) -> dict[str, Trained] | None:
    """The arms; None where a launch was not evaluated or says not what it ran."""
    found: dict[str, Trained] = {}
    for name, members in source.arms.items():
        losses, summary = _by_launch(whole(members), "eval.loss"), whole(members)[0].summary
        batch, steps, warmup = (lookup(summary, key) for key in ("global_batch", "steps", "warmup_steps"))
        if losses is None or batch is None or steps is None or warmup is None:
            return None
        padded = summary.get("layout", "padded") == "padded"
        found[name] = Trained(padded, int(batch), int(steps) + int(warmup), losses)
    return found


def _effect(pairs: Iterable[tuple[Trained, Trained]], margin: float) -> Effect | None:
    """By how much the second of each pair has the higher loss, launch by launch, means over the pairs.

    None without a pair, or with fewer than two launches that all of them have.
    """
    found = [{launch: after.losses[launch] - loss for launch, loss in before.losses.items() if launch in after.losses}
             for before, after in pairs]  # fmt: skip
    shared = [launch for launch in (found[0] if found else ()) if all(launch in each for each in found)]
    if len(shared) < 2:
        return None
    return Effect(*mean_interval([fmean(each[launch] for each in found) for launch in shared]), margin)


Training = Literal["same", "samples", "unproven", "leak", "untrained", "apart", "batch", "worse", "drift"]
"""What an arm trains beside the baseline: the same; the same as far as is known; or, from `leak` on, something else."""
AS_FAR_AS_KNOWN = ("samples", "unproven")
LOSSY = ("compress.", "train.precision")
"""Beginnings of settings that change what a gradient is."""
DOUBTS = (
    *("environment", "few_launches", "launch_order", "first_stage"),
    *("short_warmup", "drift", "slowest_rank"),
)
"""Checks whose warnings make times less certain than the interval says, which has the spread of launches in it; those
that fail do, whichever they are."""
_ABOUT = ("candidate", "arm", "run", "second")
"""Values of a finding that say whose it is."""
By = Literal["time", "ranks", "bytes", "losses", "share"]
_BY: Mapping[str, By] = {"compress": "bytes", "steps": "losses", "scaling": "ranks", "bottleneck": "share"}
"""Questions that are answered by something else than time, or of numbers of ranks."""


@dataclass(frozen=True)
class Reason:
    """Why an arm is not, or not known to be, the same training as the baseline.

    Attributes:
        training: what it trains.
        measure: what it was evaluated by, `perplexity` or `loss`.
        change: of that against the baseline, mean and interval.
        drift: by which part its mean training loss is above the baseline's.
    """

    training: Training
    measure: str | None
    change: tuple[float, float, float] | None
    drift: float | None


@dataclass(frozen=True)
class Conclusion:
    """What a comparison comes to.

    Attributes:
        claim: the verdict; `other` of an arm that trains something else; else `none`, `launches` or `alike`.
        advice: what to do: as the claim says, `failed` where nothing was compared and a check failed, or `other`,
            `open`, `again` or `ranks` where more is to be said of it.
        by: what the question is answered by.
        best: the best arm, if any was compared.
        among: of what it is the best: of all, or, where others come out faster, of the `same` training or of what is
            not known to be another (`open`).
        why: it is not, or not known to be, the same training.
        undecided: arms that are neither slower than the baseline nor the same.
        near: other arms found faster that the launches do not tell the best from.
        doubts: what the checks found that puts the verdict on the best in doubt, where that says something.
        other: an arm that is faster than the best and less sure to be the same training, and why.
        same: the best arm that is the same training, of those that could be compared.
    """

    claim: str
    advice: str
    by: By = "time"
    best: ComparisonRecord | None = None
    among: Literal["all", "same", "open"] | None = None
    why: Reason | None = None
    undecided: Sequence[str] = ()
    near: Sequence[str] = ()
    doubts: Sequence[Finding] = ()
    other: tuple[ComparisonRecord, Reason] | None = None
    same: ComparisonRecord | None = None


def conclude(source: ReportInput) -> Conclusion:
    """What is concluded.

    The best arm is the fastest of those found FASTER that are the same training, or else may be, or else are not.
    Without one found FASTER, the largest speed-up, of what is the same training and could be compared if any was. Arms
    that do what the baseline does are left out: what they differ by is noise.
    """
    items = judged(source)
    reasons = {item.candidate: training_of(source, item) for item in items}
    if not items:
        claim = "alike" if source.comparisons else "none" if len(source.arms[source.baseline]) == 1 else "launches"
        failed = any(check.severity == "fail" for check in source.checks or ())
        return Conclusion(claim, "failed" if failed else claim)

    def is_same(item: ComparisonRecord) -> bool:
        return reasons[item.candidate].training == "same"

    def merit(item: ComparisonRecord) -> tuple[bool, int, bool, bool, float]:
        training, faster = reasons[item.candidate].training, item.verdict is Verdict.FASTER
        rank = 0 if training == "same" else 1 if training in AS_FAR_AS_KNOWN else 2
        return faster, -rank * faster, item.verdict is not Verdict.INCOMPARABLE, rank < 2, item.speedup

    best = max(items, key=merit)
    compared = [item for item in items if item.verdict is not Verdict.INCOMPARABLE]
    faster = [item for item in items if item.verdict is Verdict.FASTER]
    beyond = (item for item in faster if best in faster and item.speedup > best.speedup)
    other = max(beyond, key=lambda item: item.speedup, default=None)
    doubts = doubts_of(source, best) if best.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME) else []
    claim = "other" if best in faster and not is_same(best) else best.verdict
    undecided = {frozenset((pair.baseline, pair.candidate)) for pair in source.pairs if pair.faster is None}
    return Conclusion(
        claim=claim,
        advice=_advice(source, best, reasons[best.candidate].training, claim, bool(doubts)),
        by=_BY.get(source.question.name, "time") if best in compared else "time",
        best=best,
        among="all" if all(item.speedup <= best.speedup for item in compared) else "same" if is_same(best) else "open",
        why=reasons[best.candidate],
        undecided=[item.candidate for item in items if item.verdict not in (Verdict.SLOWER, Verdict.SAME)],
        near=[item.candidate for item in faster if frozenset((best.candidate, item.candidate)) in undecided],
        doubts=doubts,
        other=(other, reasons[other.candidate]) if other else None,
        same=max(filter(is_same, compared), key=merit, default=None),
    )


def _advice(source: ReportInput, best: ComparisonRecord, training: Training, claim: str, doubted: bool) -> str:
    if claim == "other" and training not in AS_FAR_AS_KNOWN:
        return "other"
    if doubted:
        return "again"
    if claim == "other":
        return "open"
    # GPU-hours of arms on unequal numbers of ranks are not told, but scaling has a text of its own.
    unequal = source.question.name != "scaling" and not source.same_ranks(best)
    return "ranks" if unequal and claim == Verdict.FASTER else claim


def training_of(source: ReportInput, item: ComparisonRecord) -> Reason:
    """What the candidate trains beside the baseline, by the level of the comparison, its strategies and its losses."""
    measure, arms = qualities(source)
    arm = arms.get(item.candidate)
    return Reason(_training(source, item, arm), measure, arm.change if arm else None, item.loss_drift)


def _training(source: ReportInput, item: ComparisonRecord, quality: Quality | None) -> Training:
    if item.leak is not None:
        return "leak"
    if item.level == "tokens":
        firsts = [member for name in (item.baseline, item.candidate) for member in source.arms.get(name, ())[:1]]
        names = [str((member.config or {}).get("sync.name")) for member in firsts]
        known = [STRATEGIES[name] for name in names if name in STRATEGIES]
        if not all(entry.trains for entry in known):
            return "untrained"
        return "batch" if all(entry.exact for entry in known) else "apart"
    if any(key.startswith(LOSSY) for key in item.compared):
        judgement, allowed = quality.judgement if quality else None, source.question.loss_drift
        if judgement == "beyond":
            return "worse"
        if judgement != "within":
            drifts = allowed is not None and item.loss_drift is not None and item.loss_drift > allowed
            return "drift" if drifts else "unproven"
    return "samples" if item.level == "stream" else "same"


def judged(source: ReportInput) -> list[ComparisonRecord]:
    """The comparisons that say something of an arm: not those of arms that do the same, whose difference is noise.

    An arm that differs in compression alone, which it never came to, is a second baseline.
    """
    return [
        item
        for item in source.comparisons
        if not item.aa
        if not (
            all(key.startswith("compress.") for key in item.compared)
            and never_compressed(source.arms.get(item.candidate, ()))
        )
    ]


def doubts_of(source: ReportInput, item: ComparisonRecord) -> list[Finding]:
    """What the checks found that makes the times of a comparison, not only those of others, less certain or wrong."""
    arms = [name for name in (item.baseline, item.candidate) if name in source.arms]
    names = {*arms, *(label for arm in arms for one in source.arms[arm] for label in (one.label, one.id))}
    return [
        check
        for check in source.checks or ()
        if check.severity == "fail" or (check.severity == "warn" and check.id in DOUBTS)
        if not isinstance(over := check.values.get("in_doubt"), list) or item.candidate in over
        if not (whose := {str(check.values[key]) for key in _ABOUT if key in check.values}) or whose & names
    ]


def warnings(source: ReportInput, template: Template) -> list[dict[str, object]]:
    """The checks that failed or warned, failed ones first: what each saw first, and how many findings it has.

    `few_launches` is the last, as the verdict itself says how many there are.
    """
    found: dict[str, list[Finding]] = {}
    for check in sorted(source.checks or (), key=lambda check: (check.severity != "fail", check.id == "few_launches")):
        if check.severity in ("fail", "warn"):
            found.setdefault(check.id, []).append(check)
    return [
        dict(zip(("severity", "check", "seen", "limit", "hint"), finding_texts(template, first), strict=True))
        | {"times": 1 + len(others)}
        for first, *others in found.values()
    ]


@dataclass(frozen=True)
class Compressors:
    """Which arms keep the quality of the baseline, and which of them to use.

    Attributes:
        measure: what they were evaluated by, `perplexity` or `loss`; None where some launch was not.
        within, beyond, open: names of the arms by their judgement.
        chosen: the arm within that is known to send less, and least, against the baseline; None where none is.
        quality: its quality, and how much less it sends.
        doubts: on its time.
        links: in words, over links of which speed its step is shorter; empty where that is not known.
        allowed: what counts as within.
    """

    measure: str | None
    within: Sequence[str]
    beyond: Sequence[str]
    open: Sequence[str]
    chosen: ComparisonRecord | None = None
    quality: Quality | None = None
    doubts: Sequence[Finding] = ()
    links: str = ""
    allowed: float = WITHIN


def compressors(source: ReportInput, label: Label) -> Compressors:
    """What the arms that can be judged come to; `label` gives the words of the language."""
    measure, found = qualities(source)
    compared = {item.candidate: item for item in judged(source)}
    arms = {name: arm for name, arm in found.items() if name in compared}
    within, beyond, open_ = (
        [name for name, arm in arms.items() if arm.judgement == kind] for kind in ("within", "beyond", "open")
    )
    sent = {name: arms[name].traffic or 0.0 for name in within}
    name = max((name for name in within if sent[name] > 1), key=sent.__getitem__, default="")
    if (item := compared.get(name)) is None:
        return Compressors(measure, within, beyond, open_)
    links = spans_text(faster_gbps(source.launches[name], source.launches[source.baseline]), label)
    return Compressors(measure, within, beyond, open_, item, arms[name], doubts_of(source, item), links)

"""What a comparison comes to: the best arm, whether it is the same training as the baseline, and what is in doubt.

Speed alone recommends nothing: an arm that trains something else is named with the reason, beside the best one that is
the same training; and where checks put the numbers of a verdict in doubt, what to do about it comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dynbench.analysis.finding import Finding
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment import report_texts as texts
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.report_quality import never_compressed, qualities
from dynbench.plugins import STRATEGIES
from dynbench.report import Template

Training = Literal["same", "samples", "unproven", "leak", "untrained", "apart", "batch", "worse", "drift"]
"""What an arm trains beside the baseline: the same; the same as far as is known; or, from `leak` on, something else."""
AS_FAR_AS_KNOWN = ("samples", "unproven")
LOSSY = ("compress.", "train.precision")
"""Beginnings of settings that change what a gradient is."""
DOUBTS = (
    *("environment", "few_launches", "launch_order", "predecessor", "launch_spread", "first_stage"),
    *("short_warmup", "drift", "slowest_rank"),
)
"""Checks whose warnings make times less certain; those that fail do, whichever they are."""
_ABOUT = ("candidate", "arm", "run", "second")
"""Values of a finding that say whose it is."""
BESIDE_TIME = {"compress": "bytes", "steps": "losses"}
"""Questions that are answered by something else than time."""


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
class Doubts:
    """Checks that put a comparison in doubt: their ids, and what to do about them, each once."""

    checks: list[str]
    hints: list[str]


@dataclass(frozen=True)
class Conclusion:
    """What a comparison comes to.

    Attributes:
        by: what the question is answered by: time, bytes or losses.
        claim: the verdict; `other` of an arm that trains something else; else `none`, `launches` or `alike`.
        advice: what to do.
        best: the best arm, if any was compared.
        among: of what it is the best, `all`, `same` or `open`.
        why: it is not, or not known to be, the same training.
        untold: arms that are neither slower than the baseline nor the same.
        near: other arms found faster that the launches do not tell the best from.
        doubts: on the best, whatever its verdict.
        doubted: whether its verdict says something that they put in doubt.
        other: an arm that is faster than the best and less sure to be the same training, and why.
        same: the best arm that is the same training.
    """

    by: str
    claim: str
    advice: str
    best: ComparisonRecord | None
    among: str | None
    why: Reason | None
    untold: list[str]
    near: list[str]
    doubts: Doubts | None
    doubted: bool
    other: tuple[ComparisonRecord, Reason] | None
    same: ComparisonRecord | None


def conclusion(subject: ReportInput, template: Template) -> Conclusion:
    """What is concluded, with the hints in the template's language."""
    best, other = best_of(subject), faster_otherwise(subject)
    compared = best is not None and best.verdict is not Verdict.INCOMPARABLE
    told = (Verdict.SLOWER, Verdict.SAME)
    return Conclusion(
        by=BESIDE_TIME.get(subject.question.name, "time") if compared else "time",
        claim=claim_of(subject),
        advice=advice_of(subject),
        best=best,
        among=_among(subject, best) if best else None,
        why=_reason(subject, best) if best else None,
        untold=[item.candidate for item in judged(subject) if item.verdict not in told],
        near=_near(subject, best) if best else [],
        doubts=doubts_in_words(template, doubts_of(subject, best)) if best else None,
        doubted=_doubted(subject),
        other=(other, _reason(subject, other)) if other else None,
        same=same_of(subject),
    )


def training_of(subject: ReportInput, item: ComparisonRecord) -> Training:
    """What the candidate trains beside the baseline, by the level of the comparison, its strategies and its losses."""
    if item.leak is not None:
        return "leak"
    if item.level == "tokens":
        known = [STRATEGIES[name] for name in _strategies(subject, item) if name in STRATEGIES]
        if not all(entry.trains for entry in known):
            return "untrained"
        return "batch" if all(entry.exact for entry in known) else "apart"
    allowed = subject.question.loss_drift
    if any(key.startswith(LOSSY) for key in item.compared):
        _, arms = qualities(subject)
        judgement = arms[item.candidate].judgement if item.candidate in arms else None
        if judgement == "beyond":
            return "worse"
        if judgement != "within":
            drifts = allowed is not None and item.loss_drift is not None and item.loss_drift > allowed
            return "drift" if drifts else "unproven"
    return "samples" if item.level == "stream" else "same"


def best_of(subject: ReportInput) -> ComparisonRecord | None:
    """The fastest of those found FASTER that are the same training, or else may be, or else are not.

    Without one found FASTER, the largest speed-up, of what is the same training and could be compared if any was. Arms
    that do what the baseline does are left out: what they differ by is noise.
    """

    def merit(item: ComparisonRecord) -> tuple[bool, int, bool, bool, float]:
        faster, rank = item.verdict is Verdict.FASTER, _rank(training_of(subject, item))
        comparable = item.verdict is not Verdict.INCOMPARABLE
        return faster, -rank * faster, comparable, rank < 2, item.speedup

    return max(judged(subject), key=merit, default=None)


def same_of(subject: ReportInput) -> ComparisonRecord | None:
    """The best of those that are the same training as the baseline; None where none could be compared."""
    same = [item for item in judged(subject) if training_of(subject, item) == "same"]
    comparable = [item for item in same if item.verdict is not Verdict.INCOMPARABLE]
    return max(comparable, key=lambda item: (item.verdict is Verdict.FASTER, item.speedup), default=None)


def faster_otherwise(subject: ReportInput) -> ComparisonRecord | None:
    """The fastest of those found FASTER, where it is not the best, because it is less sure to be the same training."""
    best = best_of(subject)
    if best is None or best.verdict is not Verdict.FASTER:
        return None
    faster = [item for item in judged(subject) if item.verdict is Verdict.FASTER and item.speedup > best.speedup]
    return max(faster, key=lambda item: item.speedup, default=None)


def doubts_of(subject: ReportInput, item: ComparisonRecord) -> list[Finding]:
    """What the checks found that makes the times of a comparison less certain, or wrong."""
    arms = [name for name in (item.baseline, item.candidate) if name in subject.arms]
    names = {*arms, *(label for arm in arms for one in subject.arms[arm] for label in (one.label, one.id))}
    return [
        check
        for check in subject.checks or ()
        if check.severity == "fail" or (check.severity == "warn" and check.id in DOUBTS)
        if not (whose := {str(check.values[key]) for key in _ABOUT if key in check.values}) or whose & names
    ]


def doubts_in_words(template: Template, doubts: Iterable[Finding]) -> Doubts:
    """What checks found, each id and each hint once."""
    told = [(check.id, texts.finding_texts(template, check)[-1]) for check in doubts]
    return Doubts(*(list(dict.fromkeys(each[part] for each in told)) for part in (0, 1)))


def claim_of(subject: ReportInput) -> str:
    """What was found: the verdict, that the best trains something else, or what stood alone."""
    best = best_of(subject)
    if best is None:
        alone = "none" if len(subject.arms[subject.baseline]) == 1 else "launches"
        return "alike" if subject.comparisons else alone
    return "other" if _trains_otherwise(subject, best) else best.verdict


def advice_of(subject: ReportInput) -> str:
    """What to do: what the claim says, or `other`, `open`, `again` or `ranks` where more is to be said of the best."""
    best, claim, doubted = best_of(subject), claim_of(subject), _doubted(subject)
    if best is None or best.verdict is Verdict.INCOMPARABLE:
        return claim
    if claim == "other":
        open_ = training_of(subject, best) in AS_FAR_AS_KNOWN
        if not (open_ and doubted):
            return "open" if open_ else "other"
    if doubted:
        return "again"
    # GPU-hours of arms on unequal numbers of ranks are not told, but scaling has a text of its own.
    unequal = subject.question.name != "scaling" and not subject.same_ranks(best)
    return "ranks" if unequal and claim == Verdict.FASTER else claim


def _doubted(subject: ReportInput) -> bool:
    """Whether the best arm has a verdict that says something, and checks put it in doubt."""
    best = best_of(subject)
    concluded = best is not None and best.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
    return best is not None and concluded and bool(doubts_of(subject, best))


def judged(subject: ReportInput) -> list[ComparisonRecord]:
    """The comparisons that say something of an arm: not those of arms that do the same, whose difference is noise."""
    return [item for item in subject.comparisons if not item.aa and not _only_compresses_later(subject, item)]


def _only_compresses_later(subject: ReportInput, item: ComparisonRecord) -> bool:
    """Whether a candidate differs in compression alone, which it never came to: it is a second baseline."""
    alone = all(key.startswith("compress.") for key in item.compared)
    return alone and never_compressed(subject.arms.get(item.candidate, ()))


def _among(subject: ReportInput, best: ComparisonRecord) -> str:
    """Of what the best is the best: of all, or, where others come out faster, of the same training."""
    others = [item for item in judged(subject) if item.verdict is not Verdict.INCOMPARABLE]
    if all(item.speedup <= best.speedup for item in others):
        return "all"
    return "same" if training_of(subject, best) == "same" else "open"


def _near(subject: ReportInput, best: ComparisonRecord) -> list[str]:
    """Other arms found faster that the launches do not tell the best from."""
    untold = {frozenset((pair.baseline, pair.candidate)) for pair in subject.pairs if pair.faster is None}
    faster = [item.candidate for item in judged(subject) if item.verdict is Verdict.FASTER]
    return [name for name in faster if frozenset((best.candidate, name)) in untold]


def _rank(training: Training) -> int:
    return 0 if training == "same" else 1 if training in AS_FAR_AS_KNOWN else 2


def _trains_otherwise(subject: ReportInput, item: ComparisonRecord) -> bool:
    """Whether an arm is FASTER, and not known to be the same training."""
    return item.verdict is Verdict.FASTER and training_of(subject, item) != "same"


def _strategies(subject: ReportInput, item: ComparisonRecord) -> list[str]:
    """What brings gradients together in both arms."""
    members = [one for name in (item.baseline, item.candidate) for one in subject.arms.get(name, ())[:1]]
    return [str((one.config or {}).get("sync.name")) for one in members]


def _reason(subject: ReportInput, item: ComparisonRecord) -> Reason:
    measure, arms = qualities(subject)
    change = arms[item.candidate].change if item.candidate in arms else None
    return Reason(training_of(subject, item), measure, change, item.loss_drift)

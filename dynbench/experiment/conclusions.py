"""What a comparison comes to: the best arm, whether it is the same training as the baseline, and what is in doubt.

Speed alone recommends nothing: an arm that trains something else is named with the reason, beside the best one that is
the same training; and where checks put the numbers of a verdict in doubt, what to do about it comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dynbench.analysis.finding import Finding
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment import report_texts as texts
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import interval, percent, ratio
from dynbench.experiment.quality_answers import change_of, measure_text, never_compressed, qualities
from dynbench.experiment.subject import Subject
from dynbench.plugins import STRATEGIES

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
OWN = (
    *(f"best.{what}" for what in ("why", "verdict", "among", "beaten", "untold", "near", "near_names")),
    *("training.change", "doubts.names", "doubts.hints"),
    *(f"other.{what}" for what in ("name", "speedup", "interval", "why")),
    *(f"same.{what}" for what in ("name", "verdict", "speedup", "interval")),
)
"""Placeholders that only the sentences of this module use, and those of the best arm."""
_ABOUT = ("candidate", "arm", "run", "second")
"""Values of a finding that say whose it is."""


def training_of(subject: Subject, item: ComparisonRecord) -> Training:
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


def best_of(subject: Subject) -> ComparisonRecord | None:
    """The fastest of those found FASTER that are the same training, or else may be, or else are not.

    Without one found FASTER, the largest speed-up, of what is the same training and could be compared if any was. Arms
    that do what the baseline does are left out: what they differ by is noise.
    """

    def merit(item: ComparisonRecord) -> tuple[bool, int, bool, bool, float]:
        faster, rank = item.verdict is Verdict.FASTER, _rank(training_of(subject, item))
        comparable = item.verdict is not Verdict.INCOMPARABLE
        return faster, -rank * faster, comparable, rank < 2, item.speedup

    return max(judged(subject), key=merit, default=None)


def same_of(subject: Subject) -> ComparisonRecord | None:
    """The best of those that are the same training as the baseline; None where none could be compared."""
    same = [item for item in judged(subject) if training_of(subject, item) == "same"]
    comparable = [item for item in same if item.verdict is not Verdict.INCOMPARABLE]
    return max(comparable, key=lambda item: (item.verdict is Verdict.FASTER, item.speedup), default=None)


def faster_otherwise(subject: Subject) -> ComparisonRecord | None:
    """The fastest of those found FASTER, where it is not the best, because it is less sure to be the same training."""
    best = best_of(subject)
    if best is None or best.verdict is not Verdict.FASTER:
        return None
    faster = [item for item in judged(subject) if item.verdict is Verdict.FASTER and item.speedup > best.speedup]
    return max(faster, key=lambda item: item.speedup, default=None)


def doubts_of(subject: Subject, item: ComparisonRecord) -> list[Finding]:
    """What the checks found that makes the times of a comparison less certain, or wrong."""
    arms = [name for name in (item.baseline, item.candidate) if name in subject.arms]
    names = {*arms, *(label for arm in arms for one in subject.arms[arm] for label in (one.label, one.id))}
    return [
        check
        for check in subject.checks or ()
        if check.severity == "fail" or (check.severity == "warn" and check.id in DOUBTS)
        if not (whose := {str(check.values[key]) for key in _ABOUT if key in check.values}) or whose & names
    ]


def placeholders(speaker: Speaker) -> dict[str, str | None]:
    """Of the best arm, of the one that is faster but another training, and of the best that is the same."""
    subject = speaker.subject
    best, other, same = best_of(subject), faster_otherwise(subject), same_of(subject)
    found: dict[str, str | None] = {}
    if best is not None:
        doubts = doubts_of(subject, best)
        told = [texts.finding_texts(speaker.template, check) for check in doubts]
        found = {
            "best.why": _why(speaker, best),
            "best.verdict": verdict_text(speaker, best),
            "best.among": speaker.say(f"among.{_among(subject, best)}").strip(),
            "best.beaten": _beaten(speaker),
            "best.near": _near(speaker, best),
            "doubts.names": ", ".join(dict.fromkeys(f"`{check.id}`" for check in doubts)),
            "doubts.hints": " ".join(dict.fromkeys(hint for *_, hint in told)),
        }
    if other is not None:
        found |= {"other.name": f"`{other.candidate}`", "other.why": _why(speaker, other), **_ratio("other", other)}
    if same is not None:
        named = {"same.name": f"`{same.candidate}`", "same.verdict": verdict_text(speaker, same)}
        found |= {**named, **_ratio("same", same)}
    return found


def claim_of(subject: Subject) -> str:
    """Which text says what was found: that of the verdict, or of what stood alone."""
    best = best_of(subject)
    if best is None:
        alone = "none" if len(subject.arms[subject.baseline]) == 1 else "launches"
        return "alike" if subject.comparisons else alone
    return "other" if _trains_otherwise(subject, best) else best.verdict


def recommended(subject: Subject) -> Sequence[str]:
    """Which texts say what to do, one after the other."""
    best, claim, doubted = best_of(subject), claim_of(subject), _doubted(subject)
    if best is None or best.verdict is Verdict.INCOMPARABLE:
        return [f"recommendation.{claim}"]
    if claim == "other":
        open_ = training_of(subject, best) in AS_FAR_AS_KNOWN
        same = f"same.{'none' if same_of(subject) is None else 'found'}"
        if not (open_ and doubted):
            return [f"recommendation.{'open' if open_ else 'other'}", same]
    if doubted:
        return ["recommendation.again"]
    # GPU-hours of arms on unequal numbers of ranks are not told, but scaling has a text of its own.
    unequal = subject.question.name != "scaling" and not subject.same_ranks(best)
    return ["recommendation.ranks" if unequal and claim == Verdict.FASTER else f"recommendation.{claim}"]


def conclusion(speaker: Speaker) -> str:
    """What to do, in the report's words."""
    return " ".join(speaker.say(key).strip() for key in recommended(speaker.subject))


def notes(subject: Subject) -> Mapping[str, str | None]:
    """Which texts say what else there is to know of what was found."""
    return {
        "say.other": "other.note" if faster_otherwise(subject) else None,
        "say.doubts": "doubts.note" if _doubted(subject) else None,
    }


def _doubted(subject: Subject) -> bool:
    """Whether the best arm has a verdict that says something, and checks put it in doubt."""
    best = best_of(subject)
    concluded = best is not None and best.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
    return best is not None and concluded and bool(doubts_of(subject, best))


def judged(subject: Subject) -> list[ComparisonRecord]:
    """The comparisons that say something of an arm: not those of arms that do the same, whose difference is noise."""
    return [item for item in subject.comparisons if not item.aa and not _only_compresses_later(subject, item)]


def _only_compresses_later(subject: Subject, item: ComparisonRecord) -> bool:
    """Whether a candidate differs in compression alone, which it never came to: it is a second baseline."""
    alone = all(key.startswith("compress.") for key in item.compared)
    return alone and never_compressed(subject.arms.get(item.candidate, ()))


def _among(subject: Subject, best: ComparisonRecord) -> str:
    """Which text says of what the best is the best: of all, or, where others come out faster, of the same training."""
    others = [item for item in judged(subject) if item.verdict is not Verdict.INCOMPARABLE]
    if all(item.speedup <= best.speedup for item in others):
        return "all"
    return "same" if training_of(subject, best) == "same" else "open"


def _beaten(speaker: Speaker) -> str:
    """That the baseline is beaten by no arm, or which of them launches do not tell from it."""
    told = (Verdict.SLOWER, Verdict.SAME)
    untold = ", ".join(f"`{item.candidate}`" for item in judged(speaker.subject) if item.verdict not in told)
    return speaker.say(f"beaten.{'open' if untold else 'none'}", best_untold=untold).strip()


def _near(speaker: Speaker, best: ComparisonRecord) -> str:
    """Which other arms found faster the launches do not tell the best from; empty without any."""
    untold = {frozenset((pair.baseline, pair.candidate)) for pair in speaker.subject.pairs if pair.faster is None}
    faster = [item.candidate for item in judged(speaker.subject) if item.verdict is Verdict.FASTER]
    near = ", ".join(f"`{name}`" for name in faster if frozenset((best.candidate, name)) in untold)
    return speaker.say("near", best_near_names=near) if near else ""


def _rank(training: Training) -> int:
    return 0 if training == "same" else 1 if training in AS_FAR_AS_KNOWN else 2


def _trains_otherwise(subject: Subject, item: ComparisonRecord) -> bool:
    """Whether an arm is FASTER, and not known to be the same training."""
    return item.verdict is Verdict.FASTER and training_of(subject, item) != "same"


def _strategies(subject: Subject, item: ComparisonRecord) -> list[str]:
    """What brings gradients together in both arms."""
    members = [one for name in (item.baseline, item.candidate) for one in subject.arms.get(name, ())[:1]]
    return [str((one.config or {}).get("sync.name")) for one in members]


def _why(speaker: Speaker, item: ComparisonRecord) -> str:
    """Why an arm is not, or not known to be, the same training; empty where it is."""
    training = training_of(speaker.subject, item)
    if training == "same":
        return ""
    measure, arms = qualities(speaker.subject)
    change = change_of(arms[item.candidate]) if training == "worse" else percent(item.loss_drift)
    own = {"training_change": change, "quality_measure": measure_text(speaker, measure) if measure else None}
    return speaker.say(f"training.{training}", **own).strip()


def verdict_text(speaker: Speaker, item: ComparisonRecord) -> str:
    """The verdict as a word of the report."""
    return speaker.template.label(f"verdicts.{item.verdict}")


def _ratio(name: str, item: ComparisonRecord) -> dict[str, str | None]:
    return {f"{name}.speedup": ratio(item.speedup), f"{name}.interval": interval(item)}

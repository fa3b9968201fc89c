"""The comparison of two arms: comparable at all, at which level, how much faster, and with what certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypedDict, Unpack

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparability import alike, all_differences, compared_settings, describe
from dynbench.analysis.levels import comparison_level, loss_difference, loss_drift
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.metrics import improvements
from dynbench.analysis.pairing import Pair, Pairing, pair_launches
from dynbench.analysis.prediction import predicted_speedup
from dynbench.analysis.questions import find_question, not_comparable
from dynbench.analysis.questions.base import SAMPLES, Differences, Question, Unit
from dynbench.analysis.record import ComparisonRecord, Level
from dynbench.analysis.recovery import Recovery, recovery
from dynbench.analysis.scaling import efficiency_of
from dynbench.analysis.speedup import speedup_of, unit_of
from dynbench.analysis.stats import Ratio
from dynbench.analysis.summary import Summary, summary_of
from dynbench.analysis.verdict import Verdict, decide, decide_alike, sentence, sentence_alike
from dynbench.analysis.weights import weights_difference
from dynbench.config.schema import Analysis
from dynbench.errors import NotComparable
from dynbench.runs.phrase import Phrase


@dataclass(frozen=True)
class Comparison:
    """One candidate against the baseline.

    Attributes:
        question: what is asked of them.
        baseline, candidate: the arms.
        pairing: their pairs, and the launches left out.
        verdict: the word, and `reason` the sentence with the numbers.
        aa: the arms are configured alike, so that what differs is noise; never a reason to choose one of them. A stored
            baseline configured alike is none: what is asked then is what changed since, in code or machine.
        level: how far both did the same work.
        speedup: baseline's seconds per unit of work over the candidate's.
        noise: the threshold applied.
        confidence: level of the interval.
        loss_max_rel_diff: largest relative difference of a step's global loss, at level `step` only and where all
            losses are finite.
        loss_drift: part by which the candidate's mean training loss is above the baseline's, where it is finite.
        weights_max_diff: largest difference of their last weights, relative to the largest, where both kept these.
        efficiency: of workers, against the arm of its strategy with the fewest; None for other questions.
        improvement_percent: by metric key, means over launches.
        predicted: speed-up that the probe behind a run predicted, None without one.
        leak: of which arm, and how, samples of a row see each other; None where none do.
        recovery: share of what the baseline loses against the bound that the candidate gives back, None where there
            is no telling, where the arms cannot be compared, or do not differ in plans.
        compared: settings that differ and may.
        forbidden: keys that differ and may not, in a forced comparison.
    """

    question: Question
    baseline: Arm
    candidate: Arm
    pairing: Pairing
    verdict: Verdict
    reason: Phrase
    aa: bool
    level: Level
    speedup: Ratio
    noise: float
    confidence: float
    loss_max_rel_diff: float | None
    loss_drift: float | None
    weights_max_diff: float | None
    efficiency: float | None
    improvement_percent: dict[str, float]
    predicted: float | None
    recovery: Recovery | None
    leak: Phrase | None
    compared: Differences
    forbidden: Differences = field(default_factory=dict)

    def record(self, id: str = "", path: str = "") -> ComparisonRecord:
        """What is kept and printed of it, with the id and the path of the entry that holds it."""
        low, high = self.speedup.low, self.speedup.high
        found = self.recovery
        return ComparisonRecord(
            id=id,
            path=path,
            question=self.question.name,
            unit=self.question.unit.name,
            baseline=self.baseline.label,
            candidate=self.candidate.label,
            verdict=self.verdict,
            reason=self.reason,
            reason_said=self.reason.record(),
            aa=self.aa,
            level=self.level,
            speedup=self.speedup.estimate,
            ci95=None if low is None or high is None else (low, high),
            confidence=self.confidence,
            predicted_speedup=self.predicted,
            bound_speedup=found.bound_speedup if found else None,
            bound_within_steps=found.within_steps if found else None,
            leak=None if self.leak is None else str(self.leak),
            recovered_share=found.share if found else None,
            overhead_share=found.overhead_share if found else None,
            efficiency=self.efficiency,
            noise_threshold=self.noise,
            launches=self.speedup.pairs,
            first_stage=self.speedup.first,
            same_work=self.level in ("step", "window"),
            loss_max_rel_diff=self.loss_max_rel_diff,
            loss_drift=self.loss_drift,
            weights_max_diff=self.weights_max_diff,
            improvement_percent=self.improvement_percent,
            left_out=list(self.pairing.left_out),
            compared={key: list(values) for key, values in self.compared.items()},
            forced_over={key: list(values) for key, values in self.forbidden.items()},
        )


class Asked(TypedDict, total=False):
    """What is asked of arms, handed on by everything that compares them."""

    question: str | None
    """Name of what is asked; None finds it from what differs."""
    force: bool
    """Compare what cannot be compared; the verdict is then INCOMPARABLE, with the numbers beside it."""
    summaries: Mapping[str, Summary] | None
    """Id of each run to its summary; None makes them."""
    first: int | None
    """Launches per arm of the first stage, whose spread intervals keep, where it said how many follow."""


def compare_arms(arms: Sequence[Arm], settings: Analysis, **asked: Unpack[Asked]) -> list[Comparison]:
    """Compares every further arm with the first, on the terms of `terms_of`.

    Raises:
        NotComparable: keys differ that may not, or no whole launches are left to pair.
        UsageError: no question has that name.
    """
    terms = terms_of(arms, settings, **asked)
    return [compare_two(terms, arms[0], arm) for arm in arms[1:]]


def terms_of(
    arms: Sequence[Arm],
    settings: Analysis,
    *,
    question: str | None = None,
    force: bool = False,
    summaries: Mapping[str, Summary] | None = None,
    first: int | None = None,
) -> Terms:
    """What all comparisons of some arms share; the baseline comes first, and what is asked is `Asked`.

    Two arms of one configuration, neither or both of them stored, are A/A: what they differ by, and the half-width of
    their interval, raise the noise threshold of the other comparisons.

    Raises:
        UsageError: no question has that name.
    """
    differences = [all_differences(arms[0].runs[0], arm.runs[0]) for arm in arms[1:]]
    asked = find_question(differences, question)
    if all(unit_of(run) is SAMPLES for arm in arms for run in arm.runs):
        asked = asked.of_samples()
    measured = [_noise(one, other, settings.confidence, asked.unit, first) for one, other in combinations(arms, 2)]
    noise = max([settings.noise_threshold, *measured])
    if summaries is None:
        summaries = {run.run.id: summary_of(run) for arm in arms for run in arm.runs}
    return Terms(asked, differences, arms, settings, noise, force, summaries, first)


@dataclass(frozen=True)
class Terms:
    """What all comparisons of one analysis share.

    Attributes:
        question: what is asked.
        differences: of every candidate, how it differs from the baseline.
        arms: all of them.
        settings, force, summaries, first: as `Asked` has them.
        noise: the threshold, raised by arms configured alike.
    """

    question: Question
    differences: Sequence[Differences]
    arms: Sequence[Arm]
    settings: Analysis
    noise: float
    force: bool
    summaries: Mapping[str, Summary]
    first: int | None = None

    def speedup(self, pairs: Sequence[Pair]) -> Ratio:
        """What pairs of launches of two of the arms show."""
        return speedup_of(pairs, self.question.unit, self.settings.confidence, self.first)


def _noise(one: Arm, other: Arm, confidence: float, unit: Unit, first: int | None) -> float:
    """What two arms of one configuration differ by; 0 for any others."""
    if one.stored != other.stored:
        return 0.0
    pairs = pair_launches(one, other).pairs
    if any(run.facts.together is not None and run.facts.together != beside.facts.together for run, beside in pairs):
        return 0.0  # each took turns with others: what lies between launches is no noise of theirs
    return speedup_of(pairs, unit, confidence, first).noise if pairs and alike(pairs) else 0.0


def compare_two(terms: Terms, baseline: Arm, candidate: Arm) -> Comparison:
    """Compares two of the arms.

    Raises:
        NotComparable: as `compare_arms`.
    """
    question, settings = terms.question, terms.settings
    pairing = pair_launches(baseline, candidate)
    if terms.force and not pairing.pairs:
        pairing = pair_launches(baseline, candidate, partial=True)
    forbidden = _forbidden(terms, baseline, candidate, pairing)
    pairs, unit, confidence = pairing.pairs, question.unit, settings.confidence
    level = comparison_level(pairs)
    speedup = terms.speedup(pairs)
    same = not forbidden and alike(pairs)
    aa = same and baseline.stored == candidate.stored
    noise = settings.noise_threshold if aa else terms.noise
    if aa:
        verdict = decide_alike(speedup, noise)
        reason = sentence_alike(baseline.label, candidate.label, speedup, confidence, unit)
    else:
        verdict = decide(speedup, noise)
        reason = sentence(verdict, baseline.label, candidate.label, speedup, noise, confidence, unit)
    if forbidden:
        verdict, reason = Verdict.INCOMPARABLE, Phrase.of("reason.INCOMPARABLE", differences=describe(forbidden))
    elif (comm_model := pairs[0][0].facts.comm_model) is not None:
        reason = Phrase.of("reason.virtual", reason=reason, comm_model=comm_model)
    leak = _leak(baseline, candidate)
    if leak is not None and not forbidden:
        reason = Phrase.of("reason.leak", reason=reason, leak=leak)
    scales = question.raised_by(("world_size",)) and not forbidden
    before, after = ([terms.summaries[pair[side].run.id] for pair in pairs] for side in (0, 1))
    trained = all(run.facts.trains for pair in pairs for run in pair)
    return Comparison(
        question=question,
        baseline=baseline,
        candidate=candidate,
        pairing=pairing,
        verdict=verdict,
        reason=reason,
        aa=aa,
        level=level,
        speedup=speedup,
        noise=noise,
        confidence=confidence,
        loss_max_rel_diff=loss_difference(pairs) if trained and level == "step" else None,
        loss_drift=loss_drift(pairs) if trained else None,
        weights_max_diff=weights_difference(pairs) if level == "step" else None,
        efficiency=efficiency_of(candidate, terms.arms, unit, confidence, terms.first) if scales else None,
        improvement_percent=improvements(before, after),
        predicted=predicted_speedup(*pairs[0]) if question.plans else None,
        recovery=recovery(pairs, level) if question.plans and not (same or forbidden or leak) else None,
        leak=leak,
        compared=compared_settings(all_differences(*pairs[0]), question),
        forbidden=forbidden,
    )


def _leak(*arms: Arm) -> Phrase | None:
    """Of which of the arms, and how, samples of a row see each other; None where none do."""
    found = [
        (arm.label, next((run.facts.leak for run in arm.runs if run.facts.leak is not None), None)) for arm in arms
    ]
    told = [Phrase.of("leak.of", arm=label, leak=leak) for label, leak in found if leak is not None]
    return Phrase.listed("; ", told) if told else None


def _forbidden(terms: Terms, baseline: Arm, candidate: Arm, pairing: Pairing) -> Differences:
    """Keys that forbid the comparison, which only a forced one survives.

    Raises:
        NotComparable: there are some and the comparison is not forced, or nothing is paired.
    """
    found: dict[str, tuple[object, object]] = {}
    for base, other in pairing.pairs or ((baseline.runs[0], candidate.runs[0]),):
        found |= terms.question.forbidden(all_differences(base, other))
        if pairing.pairs and (base.partial or other.partial):
            found["rows"] = (_lacks(base), _lacks(other))
    if found and not (terms.force and pairing.pairs):
        raise not_comparable(
            f"{baseline.label} and {candidate.label}",
            describe(found),
            terms.question,
            [*terms.differences, found],
            "Train both with the same values, or add --force to see the numbers without a verdict.",
        )
    if not pairing.pairs:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} cannot be compared: {'; '.join(pairing.left_out)}",
            "Launch what is missing again with the same seed; --force takes partial launches as they are.",
        )
    return found


def _lacks(merged: MergedRun) -> Phrase:
    return Phrase.listed("; ", merged.lacks) if merged.lacks else Phrase.of("whole")

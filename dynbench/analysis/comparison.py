"""The comparison of two arms: comparable at all, at which level, how much faster, and with what certainty.

The candidates' comparisons with the baseline are one family of pairs, all other pairs a second one: their verdicts hold
jointly among themselves (`verdict`), and say nothing against those of the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean

from dynbench.analysis.arms import (
    Arm,
    Pairing,
    Part,
    alike,
    all_differences,
    compared_settings,
    describe,
    launch_differences,
    log_ratios,
    pair_launches,
    seconds_per_unit,
    unit_of,
)
from dynbench.analysis.differences import Differences
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import improvements
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pace import predicted_speedup
from dynbench.analysis.per_launch import PerLaunch, tail_record
from dynbench.analysis.questions import SAMPLES, Question, find_question, not_comparable
from dynbench.analysis.record import ComparisonRecord, PairRecord, TailRecord
from dynbench.analysis.scaling import efficiency_of
from dynbench.analysis.stats import Ratio, pair_spread
from dynbench.analysis.verdict import (
    Joint,
    Level,
    Spread,
    Verdict,
    comparison_level,
    decide,
    loss_difference,
    loss_drift,
    sentence,
    weights_difference,
)
from dynbench.analysis.waste import Recovery, recovery
from dynbench.config.schema import Analysis
from dynbench.errors import NotComparable
from dynbench.runs.phrase import Phrase

_RECORDED = (
    *("verdict", "reason", "aa", "level", "confidence", "aa_noise", "efficiency", "improvement_percent"),
    *("loss_max_rel_diff", "loss_drift", "weights_max_diff", "predicted_speedup", "tail"),
)
"""Attributes of a comparison that its record has as they are."""
TAIL = "step_time_ms.p95"
"""Key in a summary."""


@dataclass(frozen=True)
class Comparison:
    """One candidate against the baseline.

    Attributes:
        question: what is asked of them.
        baseline, candidate: the arms.
        pairing: their pairs, and the launches left out.
        aa: the arms are configured alike, so that what differs is noise; never a reason to choose one of them. A stored
            baseline configured alike is none: what is asked then is what changed since, in code or machine.
        level: how far both did the same work.
        speedup: baseline's seconds per unit of work over the candidate's, with the interval of this pair alone.
        joint: the same as one of the pairs that are judged together; None where it is not judged with others.
        tail: P95 of the step time, likewise; None where other things are asked, or steps are of other sizes.
        noise: the threshold that was set, the margin of SAME.
        aa_noise: what arms configured alike differed by; None without any. A smaller difference is told from nothing.
        confidence: level of the interval.
        loss_max_rel_diff: largest relative difference of a step's global loss, at level `step` only and where all
            losses are finite.
        loss_drift: part by which the candidate's mean training loss is above the baseline's, where it is finite.
        weights_max_diff: largest absolute difference of their last weights, where both kept these.
        efficiency: of workers, against the arm of its strategy with the fewest; None for other questions.
        improvement_percent: by metric key, over the pairs.
        predicted_speedup: that the probe behind a run predicted, None without one.
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
    aa: bool
    level: Level
    speedup: Ratio
    noise: float
    aa_noise: float | None
    confidence: float
    loss_max_rel_diff: float | None
    loss_drift: float | None
    weights_max_diff: float | None
    efficiency: float | None
    improvement_percent: dict[str, float]
    predicted_speedup: float | None
    recovery: Recovery | None
    leak: Phrase | None
    compared: Differences
    forbidden: Differences = field(default_factory=dict)
    joint: Joint | None = None
    tail: TailRecord | None = None

    @property
    def judged(self) -> Ratio:
        """The speed-up with the interval that the verdict rests on."""
        return self.speedup if self.joint is None else self.joint.ratio

    @property
    def level_alone(self) -> float:
        """Confidence of that interval by itself."""
        return self.confidence if self.joint is None else self.joint.level

    @property
    def spread(self) -> Spread | None:
        """What that interval rests on; None without one."""
        if self.joint is not None:
            return self.joint.spread
        own = pair_spread(self.speedup, self.confidence)
        return None if own is None else Spread(own, self.speedup.df, "own")

    @property
    def verdict(self) -> Verdict:
        """The word."""
        if self.forbidden:
            return Verdict.INCOMPARABLE
        return decide(self.judged, self.noise, self.aa_noise, alike=self.aa)

    def verdict_over(self, part: Part) -> Verdict:
        """The word, were the speed-up that of a part of the measured steps, with an interval as wide as that of all."""
        pairs, unit = self.pairing.pairs, self.question.unit
        shift = math.exp(fmean(log_ratios(pairs, unit, part)) - fmean(log_ratios(pairs, unit, (0, 1))))
        low, high = (None if end is None else end * shift for end in (self.judged.low, self.judged.high))
        moved = self.judged._replace(estimate=self.judged.estimate * shift, low=low, high=high)
        return self.verdict if self.forbidden else decide(moved, self.noise, self.aa_noise, alike=self.aa)

    @property
    def reason(self) -> Phrase:
        """Why, in a sentence with the numbers."""
        if self.forbidden:
            return Phrase.of("reason.INCOMPARABLE", differences=describe(self.forbidden))
        arms, noises = (self.baseline.label, self.candidate.label), (self.question.unit, self.aa_noise)
        reason = sentence(self.verdict, *arms, self.judged, self.noise, self.confidence, *noises, alike=self.aa)
        if self.joint is not None and self.joint.family > 1:
            own = {"own_low": self.speedup.low, "own_high": self.speedup.high}
            reason = Phrase.of("reason.joint", reason=reason, family=self.joint.family, **own)
        if (comm_model := self.pairing.pairs[0][0].facts.comm_model) is not None:
            reason = Phrase.of("reason.virtual", reason=reason, comm_model=comm_model)
        return reason if self.leak is None else Phrase.of("reason.leak", reason=reason, leak=self.leak)

    def record(self, id: str = "", path: str = "") -> ComparisonRecord:
        """What is kept and printed of it, with the id and the path of the entry that holds it."""
        found, joint = self.recovery, self.joint
        own = {name: getattr(self, name) for name in _RECORDED}
        return ComparisonRecord(
            **own,
            **({} if found is None else found.record()),
            id=id,
            path=path,
            question=self.question.name,
            unit=self.question.unit.name,
            baseline=self.baseline.label,
            candidate=self.candidate.label,
            reason_said=self.reason.record(),
            speedup=self.speedup.estimate,
            ci95=self.speedup.ends,
            ci_joint=self.judged.ends,
            judged_together=joint.family if joint else None,
            leak=None if self.leak is None else str(self.leak),
            noise_threshold=self.noise,
            launches=self.speedup.pairs,
            first_stage=self.speedup.first,
            same_work=self.level in ("step", "window"),
            left_out=list(self.pairing.left_out),
            compared={key: list(values) for key, values in self.compared.items()},
            forced_over={key: list(values) for key, values in self.forbidden.items()},
        )

    @property
    def faster(self) -> str | None:
        """The arm that the verdict calls the faster one; None where it calls neither so."""
        named = {Verdict.FASTER: self.candidate.label, Verdict.SLOWER: self.baseline.label}
        return named.get(self.verdict)

    def pair_record(self, id: str = "", path: str = "") -> PairRecord:
        """What is kept and printed of it as one of all pairs."""
        joint, record = self.joint, self.record(id, path)
        tested = {"spread": joint.spread.basis, "p_holm": joint.p} if joint else {}
        return PairRecord.model_validate({**dict(record), **tested, "faster": self.faster})


@dataclass(frozen=True)
class Terms:
    """What all comparisons of one analysis share.

    Two arms of one configuration, neither or both of them stored, are A/A: no other comparison is FASTER or SLOWER by
    less than they differ by, or than the half-width of their interval.

    Attributes:
        arms: all of them, the baseline first.
        settings: of the analysis.
        summaries: id of each run to its summary.
        named: name of what is asked; None finds it from what differs.
        force: compare what cannot be compared; the verdict is then INCOMPARABLE, with the numbers beside it.
        first: launches per arm of the first stage, whose spread intervals keep, where it said how many follow.
    """

    arms: Sequence[Arm]
    settings: Analysis
    summaries: Mapping[str, Mapping[str, object]]
    named: str | None = None
    force: bool = False
    first: int | None = None

    @cached_property
    def differences(self) -> Sequence[Differences]:
        """Of every candidate, how it differs from the baseline."""
        return [all_differences(self.arms[0].runs[0], arm.runs[0]) for arm in self.arms[1:]]

    @cached_property
    def question(self) -> Question:
        """What is asked.

        Raises:
            UsageError: no question has that name.
        """
        found = find_question(self.differences, self.named)
        return found.of_samples() if all(unit_of(run) is SAMPLES for arm in self.arms for run in arm.runs) else found

    @cached_property
    def time(self) -> PerLaunch:
        """Seconds per unit of work."""
        of = partial(seconds_per_unit, unit=self.question.unit)
        return PerLaunch(self.arms, of, self.settings.confidence, self.first)

    @cached_property
    def tail(self) -> PerLaunch:
        """P95 of the step time."""
        return PerLaunch(self.arms, self._p95_ms, self.settings.confidence, self.first)

    def _p95_ms(self, run: MergedRun) -> float:
        return lookup(self.summaries[run.run.id], TAIL) or math.nan

    def check_arms(self) -> None:
        """Refuses arms whose launches are of different configurations, unless the comparison is forced.

        Raises:
            NotComparable: naming the settings that differ.
        """
        for arm in () if self.force else self.arms:
            if unlike := _unlike(arm):
                raise NotComparable(
                    f"the launches of {arm.label} are of different configurations, they differ in {describe(unlike)}",
                    "Name the runs instead, which makes an arm of each configuration, or add --force to see the "
                    "numbers without a verdict.",
                )


def compare_candidates(terms: Terms) -> list[Comparison]:
    """Every further arm against the first, their verdicts held jointly.

    Raises:
        NotComparable: launches of one arm are of different configurations, keys differ that may not, or no whole
            launches are left to pair.
        UsageError: no question has the name that is asked.
    """
    terms.check_arms()
    baseline, *candidates = terms.arms
    return judge_jointly(terms, [_compare_two(terms, baseline, arm) for arm in candidates])


def judge_jointly(terms: Terms, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons as one family; arms of one configuration, and what has no interval, are judged by themselves.

    So are the tails, as a family of their own, where plans are what is asked and steps are of as many samples.
    """

    def held(numbers: PerLaunch, ratios: Sequence[Ratio | None]) -> list[Joint | None]:
        named = zip(comparisons, ratios, strict=True)
        return numbers.hold([(item.baseline.label, item.candidate.label, ratio) for item, ratio in named])

    speedups = [None if item.aa or item.forbidden else item.speedup for item in comparisons]
    tails = [
        terms.tail.ratio(item.pairing.pairs)
        if speedup is not None and item.question.plans and TAIL in item.improvement_percent
        else None
        for item, speedup in zip(comparisons, speedups, strict=True)
    ]
    judged = zip(comparisons, held(terms.time, speedups), tails, held(terms.tail, tails), strict=True)
    return [
        replace(
            item,
            joint=joint,
            tail=None if tail is None else tail_record(tail, jointly, item.noise, terms.tail.aa_noise),
        )
        for item, joint, tail, jointly in judged
    ]


def _compare_two(terms: Terms, baseline: Arm, candidate: Arm) -> Comparison:
    """Compares two of the arms by themselves.

    Raises:
        NotComparable: keys differ that may not, or no whole launches are left to pair.
    """
    question, settings = terms.question, terms.settings
    pairing = pair_launches(baseline, candidate)
    if terms.force and not pairing.pairs:
        pairing = pair_launches(baseline, candidate, partial=True)
    forbidden = _forbidden(terms, baseline, candidate, pairing)
    pairs = pairing.pairs
    level = comparison_level(pairs)
    speedup = terms.time.ratio(pairs)
    same = not forbidden and alike(pairs)
    aa = same and baseline.stored == candidate.stored
    leak = _leak(baseline, candidate)
    scales = question.raised_by(("world_size",)) and not forbidden
    before, after = ([terms.summaries[pair[side].run.id] for pair in pairs] for side in (0, 1))
    trained = all(run.facts.trains for pair in pairs for run in pair)
    return Comparison(
        question=question,
        baseline=baseline,
        candidate=candidate,
        pairing=pairing,
        aa=aa,
        level=level,
        speedup=speedup,
        noise=settings.noise_threshold,
        aa_noise=None if aa else terms.time.aa_noise,
        confidence=settings.confidence,
        loss_max_rel_diff=loss_difference(pairs) if trained and level == "step" else None,
        loss_drift=loss_drift(pairs) if trained else None,
        weights_max_diff=weights_difference(pairs) if level == "step" else None,
        efficiency=efficiency_of(candidate, terms.arms, terms.time.ratio) if scales else None,
        improvement_percent=improvements(before, after, leak=leak is not None and level == "tokens"),
        predicted_speedup=predicted_speedup(*pairs[0]) if question.plans else None,
        recovery=recovery(pairs, level) if question.plans and not (same or forbidden or leak) else None,
        leak=leak,
        compared=compared_settings(all_differences(*pairs[0]), question),
        forbidden=forbidden,
    )


def _unlike(arm: Arm) -> Differences:
    """In what launches of the arm differ, though they may not; empty where its launches are what they are called."""
    return launch_differences([run.facts.config for run in arm.runs])


def _leak(*arms: Arm) -> Phrase | None:
    """Of which of the arms, and how, samples of a row see each other; None where none do."""
    leaks = ((arm.label, next(filter(None, (run.facts.leak for run in arm.runs)), None)) for arm in arms)
    leaking = [Phrase.of("leak.of", arm=label, leak=leak) for label, leak in leaks if leak is not None]
    return Phrase("; ".join(leaking), "list", items=leaking) if leaking else None


def _forbidden(terms: Terms, baseline: Arm, candidate: Arm, pairing: Pairing) -> Differences:
    """Keys that forbid the comparison, which only a forced one survives.

    Raises:
        NotComparable: there are some and the comparison is not forced, or nothing is paired.
    """
    found: dict[str, tuple[object, object]] = {**_unlike(baseline), **_unlike(candidate)}
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
    return Phrase("; ".join(merged.lacks), "list", items=merged.lacks) if merged.lacks else Phrase.of("whole")


def compare_pairs(terms: Terms, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Every arm against every later one; two arms without launches to pair are left out.

    Args:
        terms: what the comparisons share.
        comparisons: those with the first arm.
    """
    forced = replace(terms, force=True)
    others = [
        _compare_two(forced, one, other)
        for index, one in enumerate(terms.arms[1:], start=1)
        for other in terms.arms[index + 1 :]
        if pair_launches(one, other, partial=True).pairs
    ]
    return [*comparisons, *judge_jointly(terms, others)]

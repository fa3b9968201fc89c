"""The comparison of two arms: comparable at all, at which level, how much faster, and with what certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparability import Differences, alike, compared_settings, describe, forbidden_differences
from dynbench.analysis.levels import Level, comparison_level, loss_difference
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.metrics import METRICS, improvement_percent, means
from dynbench.analysis.pairing import Pair, Pairing, pair_launches
from dynbench.analysis.prediction import predicted_speedup
from dynbench.analysis.recovery import Recovery, recovery
from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.analysis.summary import Summary, summary_of
from dynbench.analysis.verdict import Verdict, decide, decide_alike, sentence, sentence_alike
from dynbench.config.schema import Analysis
from dynbench.errors import NotComparable
from dynbench.runs.phrase import Phrase


@dataclass(frozen=True)
class Comparison:
    """One candidate against the baseline.

    Attributes:
        baseline, candidate: the arms.
        pairing: their pairs, and the launches left out.
        verdict: the word, and `reason` the sentence with the numbers.
        aa: the arms are configured alike, so that what differs is noise; never a reason to choose one of them. A stored
            baseline configured alike is none: what is asked then is what changed since, in code or machine.
        level: how far both did the same work.
        speedup: baseline's seconds per real token over the candidate's, None where nothing could be paired.
        noise: the threshold applied.
        confidence: level of the interval.
        loss_max_rel_diff: largest relative difference of a step's global loss, at level `step` only and where all
            losses are finite.
        improvement_percent: by metric key, means over launches.
        predicted: speed-up that the probe behind a run predicted, None without one.
        recovery: share of what the baseline loses against the bound that the candidate gives back, None where there
            is no telling, or where the arms cannot be compared.
        compared: settings that differ and may.
        forbidden: keys that differ and may not, in a forced comparison.
    """

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
    improvement_percent: dict[str, float]
    predicted: float | None
    recovery: Recovery | None
    compared: Differences
    forbidden: Differences = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The `comparison` object of results/FIELDS.md, less the identity of its folder."""
        low, high = self.speedup.low, self.speedup.high
        return {
            "baseline": self.baseline.label,
            "candidate": self.candidate.label,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "reason_said": self.reason.record(),
            "aa": self.aa,
            "level": self.level,
            "speedup": self.speedup.estimate,
            "ci95": None if low is None or high is None else [low, high],
            "confidence": self.confidence,
            "predicted_speedup": self.predicted,
            "bound_speedup": self.recovery.bound_speedup if self.recovery else None,
            "bound_within_steps": self.recovery.within_steps if self.recovery else None,
            "recovered_share": self.recovery.share if self.recovery else None,
            "overhead_share": self.recovery.overhead_share if self.recovery else None,
            "noise_threshold": self.noise,
            "launches": self.speedup.pairs,
            "same_work": self.level != "stream",
            "loss_max_rel_diff": self.loss_max_rel_diff,
            "improvement_percent": self.improvement_percent,
            "left_out": list(self.pairing.left_out),
            "compared": {key: list(values) for key, values in self.compared.items()},
            "forced_over": {key: list(values) for key, values in self.forbidden.items()},
        }


def compare_arms(
    arms: Sequence[Arm],
    settings: Analysis,
    *,
    force: bool = False,
    summaries: Mapping[str, Summary] | None = None,
) -> list[Comparison]:
    """Compares every further arm with the first.

    Two arms of one configuration, neither or both of them stored, are A/A: what they differ by, and the half-width of
    their interval, raise the noise threshold of the other comparisons.

    Args:
        arms: the baseline, then the candidates.
        settings: threshold and confidence.
        force: compare what cannot be compared; the verdict is then INCOMPARABLE, with the numbers beside it.
        summaries: id of each run to its summary; None makes them.

    Raises:
        NotComparable: keys differ that may not, or no whole launches are left to pair.
    """
    baseline, candidates = arms[0], arms[1:]
    measured = [_noise(one, other, settings.confidence) for one, other in combinations(arms, 2)]
    noise = max([settings.noise_threshold, *measured])
    if summaries is None:
        summaries = {run.run.id: summary_of(run) for arm in arms for run in arm.runs}
    return [_compare(baseline, arm, settings, noise, force, summaries) for arm in candidates]


def _noise(one: Arm, other: Arm, confidence: float) -> float:
    """What two arms of one configuration differ by; 0 for any others."""
    if one.stored != other.stored:
        return 0.0
    pairs = pair_launches(one, other).pairs
    return _speedup(pairs, confidence).noise if pairs and alike(pairs) else 0.0


def _speedup(pairs: Sequence[Pair], confidence: float) -> Ratio:
    return paired_ratio(
        [seconds_per_token(base) for base, _ in pairs], [seconds_per_token(other) for _, other in pairs], confidence
    )


def seconds_per_token(merged: MergedRun) -> float:
    """Time of the measured steps over their real tokens, seconds."""
    return merged.time_ms / 1000 / float(merged.measured["real_tokens"].sum())


def _compare(
    baseline: Arm, candidate: Arm, settings: Analysis, noise: float, force: bool, summaries: Mapping[str, Summary]
) -> Comparison:
    pairing = pair_launches(baseline, candidate)
    if force and not pairing.pairs:
        pairing = pair_launches(baseline, candidate, partial=True)
    forbidden = _forbidden(baseline, candidate, pairing, force)
    pairs = pairing.pairs
    level = comparison_level(pairs)
    speedup = _speedup(pairs, settings.confidence)
    same = not forbidden and alike(pairs)
    aa = same and baseline.stored == candidate.stored
    noise = settings.noise_threshold if aa else noise
    verdict, reason = _verdict(baseline.label, candidate.label, speedup, noise, settings.confidence, aa=aa)
    if forbidden:
        differing = describe(forbidden)
        verdict, reason = (
            Verdict.INCOMPARABLE,
            Phrase(f"they differ in {differing}", "reason.INCOMPARABLE", differences=differing),
        )
    else:
        reason = _with_virtual_note(reason, pairs[0][0])
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        pairing=pairing,
        verdict=verdict,
        reason=reason,
        aa=aa,
        level=level,
        speedup=speedup,
        noise=noise,
        confidence=settings.confidence,
        loss_max_rel_diff=loss_difference(pairs) if level == "step" else None,
        improvement_percent=_improvements(pairs, summaries),
        predicted=predicted_speedup(*pairs[0]),
        recovery=None if same or forbidden else recovery(pairs, level),
        compared=compared_settings(*pairs[0]),
        forbidden=forbidden,
    )


def _verdict(
    baseline: str, candidate: str, speedup: Ratio, noise: float, confidence: float, *, aa: bool
) -> tuple[Verdict, Phrase]:
    if aa:
        return decide_alike(speedup, noise), sentence_alike(baseline, candidate, speedup, confidence)
    verdict = decide(speedup, noise)
    return verdict, sentence(verdict, baseline, candidate, speedup, noise, confidence)


def _forbidden(baseline: Arm, candidate: Arm, pairing: Pairing, force: bool) -> Differences:
    """Keys that forbid the comparison, which only a forced one survives.

    Raises:
        NotComparable: there are some and the comparison is not forced, or nothing is paired.
    """
    found: Differences = {}
    for base, other in pairing.pairs or ((baseline.runs[0], candidate.runs[0]),):
        found |= forbidden_differences(base, other)
        if pairing.pairs and (base.partial or other.partial):
            found["rows"] = (_lacks(base), _lacks(other))
    if found and not (force and pairing.pairs):
        raise NotComparable(
            f"{baseline.label} and {candidate.label} cannot be compared, they differ in {describe(found)}",
            "Train both with the same values, or add --force to see the numbers without a verdict.",
        )
    if not pairing.pairs:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} cannot be compared: {'; '.join(pairing.left_out)}",
            "Launch what is missing again with the same seed; --force takes partial launches as they are.",
        )
    return found


def _lacks(merged: MergedRun) -> Phrase:
    return Phrase.listed("; ", merged.lacks) if merged.lacks else Phrase("whole", "whole")


def _with_virtual_note(reason: Phrase, merged: MergedRun) -> Phrase:
    comm_model = merged.facts.comm_model
    if comm_model is None:
        return reason
    text = f"{reason} (virtual ranks; communication: {comm_model})"
    return Phrase(text, "reason.virtual", reason=reason, comm_model=comm_model)


def _improvements(pairs: Sequence[Pair], summaries: Mapping[str, Summary]) -> dict[str, float]:
    """Improvement of every metric that both arms have, means over the paired launches."""
    before = means([summaries[base.run.id] for base, _ in pairs])
    after = means([summaries[other.run.id] for _, other in pairs])
    gains = {
        metric.key: improvement_percent(metric, before.get(metric.key), after.get(metric.key)) for metric in METRICS
    }
    return {key: gain for key, gain in gains.items() if gain is not None}

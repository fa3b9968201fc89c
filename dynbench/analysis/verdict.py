"""From paired launches to a speed-up, and from its interval to a word."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from dynbench.analysis.arms import Pair
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.questions.base import SAMPLES, TOKENS, Unit
from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.config.image_rules import has_lengths
from dynbench.runs.phrase import Phrase


def unit_of(merged: MergedRun) -> Unit:
    """What the work of a run is counted in."""
    return TOKENS if has_lengths(merged.facts.config) else SAMPLES


def seconds_per_unit(merged: MergedRun, unit: Unit = TOKENS) -> float:
    """Time of the measured steps over their work, seconds."""
    return merged.time_ms / 1000 / float(merged.measured[unit.column].sum())


def speedup_of(pairs: Sequence[Pair], unit: Unit, confidence: float, first: int | None = None) -> Ratio:
    """The ratio of the arms of the pairs, with its interval.

    Args:
        pairs: launches of the one arm and of the other.
        unit: of work.
        confidence: level of the interval.
        first: launches of the first stage, whose spread is kept; those of the lowest seeds, as a comparison numbers its
            launches, so that one that had to be repeated later stays in its stage.
    """
    before, after = ([seconds_per_unit(pair[side], unit) for pair in _by_seed(pairs)] for side in (0, 1))
    return paired_ratio(before, after, confidence, first)


def log_ratios(pairs: Sequence[Pair], unit: Unit) -> list[float]:
    """Logarithm of every pair's ratio, in order of seeds."""
    return [
        float(np.log(seconds_per_unit(one, unit) / seconds_per_unit(other, unit))) for one, other in _by_seed(pairs)
    ]


def _by_seed(pairs: Sequence[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair[0].facts.seed)


class Verdict(StrEnum):
    """What a comparison says about the candidate."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    INCOMPARABLE = "INCOMPARABLE"
    ESTIMATE = "ESTIMATE"


def decide(speedup: Ratio, noise: float, aa_noise: float | None = None) -> Verdict:
    """The verdict on a speed-up.

    SAME when the whole interval lies within the noise threshold, [1/(1+noise), 1+noise]. FASTER or SLOWER when the
    interval leaves 1 out and the estimate is beyond the threshold, and beyond what equal arms came out different by.
    ESTIMATE without an interval. AMBIGUOUS otherwise.

    Args:
        speedup: baseline's time over the candidate's.
        noise: differences below this part count as none.
        aa_noise: part by which equal arms came out different, where there were any. It never makes anything SAME:
            less is known of a noisy machine, not more.
    """
    if speedup.low is None or speedup.high is None:
        return Verdict.ESTIMATE
    upper, lower = 1 + noise, 1 / (1 + noise)
    if lower <= speedup.low and speedup.high <= upper:
        return Verdict.SAME
    told = 1 + max(noise, aa_noise or 0.0)
    if speedup.low > 1 and speedup.estimate > told:
        return Verdict.FASTER
    if speedup.high < 1 and speedup.estimate < 1 / told:
        return Verdict.SLOWER
    return Verdict.AMBIGUOUS


def decide_alike(speedup: Ratio, noise: float) -> Verdict:
    """The verdict on two arms of one configuration: what differs between them is noise, so neither is the faster."""
    verdict = decide(speedup, noise)
    return Verdict.AMBIGUOUS if verdict in (Verdict.FASTER, Verdict.SLOWER) else verdict


def sentence(
    verdict: Verdict,
    baseline: str,
    candidate: str,
    speedup: Ratio,
    noise: float,
    confidence: float,
    unit: Unit = TOKENS,
    aa_noise: float | None = None,
) -> Phrase:
    """Why, in one sentence with the numbers."""
    values: dict[str, object] = {
        "baseline": baseline,
        "candidate": candidate,
        "rate": unit.rate,
        "speedup": speedup.estimate,
    }
    if verdict != Verdict.ESTIMATE:
        values |= {**_interval(speedup, confidence), "noise": noise}
    if aa_noise is not None and decide(speedup, noise) is not verdict:
        return Phrase.of("reason.beside_aa", **values, aa_noise=aa_noise)
    return Phrase.of(f"reason.{verdict}", **values)


def sentence_alike(baseline: str, candidate: str, speedup: Ratio, confidence: float, unit: Unit = TOKENS) -> Phrase:
    """What two arms of one configuration showed, in one sentence with the numbers."""
    case = "ESTIMATE" if speedup.low is None else "interval"
    values: dict[str, object] = {
        "baseline": baseline,
        "candidate": candidate,
        "rate": unit.rate,
        "ratio": speedup.estimate,
    }
    return Phrase.of(f"reason.alike.{case}", **values, **_interval(speedup, confidence))


def _interval(speedup: Ratio, confidence: float) -> dict[str, object]:
    """The values that sentences with an interval mention; none where there is none."""
    if speedup.low is None:
        return {}
    ends = {"low": speedup.low, "high": speedup.high}
    return {**ends, "pairs": speedup.pairs, "confidence_percent": 100 * confidence}

"""From an interval to a word."""

from __future__ import annotations

from enum import StrEnum

from dynbench.analysis.question import TOKENS, Unit
from dynbench.analysis.stats import Ratio
from dynbench.runs.phrase import Phrase


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
    values = _values(baseline, candidate, unit, "speedup", speedup, confidence)
    if verdict != Verdict.ESTIMATE:
        values["noise"] = noise
    if aa_noise is not None and decide(speedup, noise) is not verdict:
        return Phrase.of("reason.beside_aa", **values, aa_noise=aa_noise)
    return Phrase.of(f"reason.{verdict}", **values)


def sentence_alike(baseline: str, candidate: str, speedup: Ratio, confidence: float, unit: Unit = TOKENS) -> Phrase:
    """What two arms of one configuration showed, in one sentence with the numbers."""
    case = "ESTIMATE" if speedup.low is None else "interval"
    return Phrase.of(f"reason.alike.{case}", **_values(baseline, candidate, unit, "ratio", speedup, confidence))


def _values(
    baseline: str, candidate: str, unit: Unit, name: str, speedup: Ratio, confidence: float
) -> dict[str, object]:
    """What sentences mention, the estimate under that name; without the ends of an interval where there is none."""
    values: dict[str, object] = {
        "baseline": baseline,
        "candidate": candidate,
        "rate": unit.rate,
        name: speedup.estimate,
    }
    if speedup.low is not None:
        values |= {"low": speedup.low, "high": speedup.high, "pairs": speedup.pairs}
        values["confidence_percent"] = 100 * confidence
    return values

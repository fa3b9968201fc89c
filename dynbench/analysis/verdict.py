"""From an interval to a word."""

from __future__ import annotations

from enum import StrEnum

from dynbench.analysis.questions.base import TOKENS, Unit
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


def decide(speedup: Ratio, noise: float) -> Verdict:
    """The verdict on a speed-up.

    SAME when the whole interval lies within the noise threshold, [1/(1+noise), 1+noise]. FASTER or SLOWER when the
    interval leaves 1 out and the estimate is beyond the threshold. ESTIMATE without an interval. AMBIGUOUS otherwise.

    Args:
        speedup: baseline's time over the candidate's.
        noise: differences below this part count as none.
    """
    if speedup.low is None or speedup.high is None:
        return Verdict.ESTIMATE
    upper, lower = 1 + noise, 1 / (1 + noise)
    if lower <= speedup.low and speedup.high <= upper:
        return Verdict.SAME
    if speedup.low > 1 and speedup.estimate > upper:
        return Verdict.FASTER
    if speedup.high < 1 and speedup.estimate < lower:
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
) -> Phrase:
    """Why, in one sentence with the numbers."""
    measured = f"{candidate} is {speedup.estimate:.3f} times as fast as {baseline} in {unit.rate}"
    interval = _interval(speedup, confidence)
    if verdict == Verdict.ESTIMATE:
        text = f"{measured}; {interval}"
        return Phrase(
            text, "reason.ESTIMATE", baseline=baseline, candidate=candidate, rate=unit.rate, speedup=speedup.estimate
        )
    threshold = f"the noise threshold of {100 * noise:.1f} %"
    why = {
        Verdict.FASTER: f"above 1, and the estimate is beyond {threshold}",
        Verdict.SLOWER: f"below 1, and the estimate is beyond {threshold}",
        Verdict.SAME: f"wholly inside {threshold}",
        Verdict.AMBIGUOUS: f"it does not settle the question at {threshold}",
    }
    return Phrase(
        f"{measured}; {interval}: {why[verdict]}",
        f"reason.{verdict}",
        baseline=baseline,
        candidate=candidate,
        rate=unit.rate,
        speedup=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        pairs=speedup.pairs,
        confidence_percent=100 * confidence,
        noise=noise,
    )


def sentence_alike(baseline: str, candidate: str, speedup: Ratio, confidence: float, unit: Unit = TOKENS) -> Phrase:
    """What two arms of one configuration showed, in one sentence with the numbers."""
    text = (
        f"{baseline} and {candidate} are configured alike, so their ratio of {speedup.estimate:.3f} in {unit.rate} is "
        f"the machine's noise; {_interval(speedup, confidence)}"
    )
    if speedup.low is None:
        return Phrase(
            text,
            "reason.alike.ESTIMATE",
            baseline=baseline,
            candidate=candidate,
            rate=unit.rate,
            ratio=speedup.estimate,
        )
    return Phrase(
        text,
        "reason.alike.interval",
        baseline=baseline,
        candidate=candidate,
        rate=unit.rate,
        ratio=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        pairs=speedup.pairs,
        confidence_percent=100 * confidence,
    )


def _interval(speedup: Ratio, confidence: float) -> str:
    if speedup.low is None or speedup.high is None:
        return "one paired launch gives no interval"
    return (
        f"{100 * confidence:g} % interval of the speed-up [{speedup.low:.3f}, {speedup.high:.3f}] "
        f"over {speedup.pairs} paired launches"
    )

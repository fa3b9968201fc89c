"""From intervals to a word, jointly: several pairs are judged so that a single false difference is as rare as of one.

The candidates of a comparison are one family against the baseline. Every one is a t test of its mean log ratio, the p
values are held jointly (S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Stat. 6, 1979), and
the interval of each is made at the level at which Holm's method tested it: it leaves 1 out just where that tells the
arms apart.

The pair's own log ratios give a spread with L-1 degrees of freedom of L launches, too few of 4 launches to hold several
candidates. Arms that ran together say more: of a table of launches by arms, what launch and arm leave is each arm's own
residual, and its variance one per arm. Two arms differ with the sum of theirs, and Welch's degrees of freedom (B. L.
Welch, Biometrika 34, 1947), up to twice L-1. One spread pooled over the arms would have more, and tells arms apart that
are equal in 10 to 27 % of comparisons where one arm spreads four times as much as the others.

A wide arm disturbs the launch's mean, so that its residuals look narrower than it is, and those of the others wider.
With k arms and the mean R of the scaled variances R_a, an unbiased one is R_a + (R_a - R)/(k-2) (F. E. Grubbs, J. Am.
Stat. Assoc. 43, 1948; G. K. Shukla, Heredity 29, 1972). It is used where it is the larger one: it may be negative, and
what comes out too wide costs power, what comes out too narrow the level. Three arms have too few others for that, and
each pair has its own spread; so it has where no two launches have all arms, or an arm is stored and met the others in
another session. With two stages spreads are the first stage's (`stats`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dynbench.analysis.arms import Arm, pair_launches, seconds_per_unit
from dynbench.analysis.question import TOKENS, Unit
from dynbench.analysis.stats import Ratio, pair_spread, student_t_quantile
from dynbench.runs.phrase import Phrase

FloatArray = NDArray[np.float64]

Basis = Literal["arms", "own"]
"""Whose spread a test rests on: one of each arm, or that of the pair's own log ratios."""

_FEWEST_ARMS = 4
"""Arms below which residuals do not tell one arm's spread from another's."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How much the log ratio of a launch varies.

    Attributes:
        sd: its standard deviation.
        df: degrees of freedom of that.
        basis: what it was estimated from.
    """

    sd: float
    df: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class Joint:
    """A pair as one of its family.

    Attributes:
        ratio: the pair's estimate with the interval that its verdict rests on.
        family: pairs that are judged together.
        p: of a difference, held jointly over the family.
        level: confidence of that interval by itself, at least that of the family.
        spread: what both rest on.
    """

    ratio: Ratio
    family: int
    p: float
    level: float
    spread: Spread


def hold_jointly(ratios: Sequence[Ratio], spreads: Sequence[Spread], confidence: float) -> list[Joint]:
    """The pairs of one family, each tested at the level that Holm's method gives it.

    Args:
        ratios: what each pair's launches show.
        spreads: of the same pairs.
        confidence: of the whole family.
    """
    errors = [spread.sd / math.sqrt(ratio.pairs) for ratio, spread in zip(ratios, spreads, strict=True)]
    estimates = [math.log(ratio.estimate) for ratio in ratios]
    found = [p_value(one, error, spread.df) for one, error, spread in zip(estimates, errors, spreads, strict=True)]
    adjusted, family = holm(found), len(ratios)
    told = sum(p < 1 - confidence for p in adjusted)
    places = np.argsort(np.argsort(found, kind="stable"), kind="stable")
    joint = []
    for ratio, spread, error, estimate, p, place in zip(
        ratios, spreads, errors, estimates, adjusted, places, strict=True
    ):
        level = 1 - (1 - confidence) / (family - min(int(place), told, family - 1))
        half = student_t_quantile(0.5 + level / 2, spread.df) * error
        ends = math.exp(estimate - half), math.exp(estimate + half)
        joint.append(Joint(Ratio(ratio.estimate, *ends, ratio.pairs, ratio.first), family, p, level, spread))
    return joint


@dataclass(frozen=True)
class ArmSpreads:
    """A variance per arm.

    Attributes:
        variances: of an arm's logarithms of seconds per unit, by its label; none where they cannot be told apart.
        df: degrees of freedom of each.
    """

    variances: Mapping[str, float]
    df: int

    def of_pair(self, one: str, other: str, ratio: Ratio, confidence: float) -> Spread | None:
        """What the difference of two arms rests on; None where the pair has no interval.

        Args:
            one: label of an arm.
            other: of the other.
            ratio: what their launches show.
            confidence: level of its interval.
        """
        own = pair_spread(ratio, confidence)
        if own is None:
            return None
        if one not in self.variances or other not in self.variances:
            return Spread(own, ratio.df, "own")
        sd, df = of_two(np.float64(self.variances[one]), np.float64(self.variances[other]), self.df)
        return Spread(float(sd), float(df), "arms")


def arm_spreads(arms: Sequence[Arm], unit: Unit, first: int | None = None) -> ArmSpreads:
    """The arms' own spreads, of the launches that have all of them.

    Args:
        arms: all arms of an analysis.
        unit: of work.
        first: launches of the first stage, whose spread is kept; None is all.
    """
    table = launch_table(arms, unit)[:first]
    if len(arms) < _FEWEST_ARMS or len(table) < 2:
        return ArmSpreads({}, 0)
    labels = [arm.label for arm in arms]
    return ArmSpreads(dict(zip(labels, arm_variances(table).tolist(), strict=True)), len(table) - 1)


def arm_variances(tables: FloatArray) -> FloatArray:
    """Variance of every arm, of what launch and arm leave, no smaller than the unbiased one; [..., arms].

    Args:
        tables: logarithms, [..., launches, arms], of 2 launches or more and 3 arms or more.
    """
    launches, arms = tables.shape[-2:]
    residuals = tables - tables.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    scaled: FloatArray = (residuals**2).sum(axis=-2) / (launches - 1) * arms / (arms - 1)
    beyond = scaled - scaled.mean(axis=-1, keepdims=True)
    unbiased: FloatArray = scaled + np.maximum(beyond, 0) / (arms - 2)
    return unbiased


def of_two(one: FloatArray | np.float64, other: FloatArray | np.float64, df: int) -> tuple[FloatArray, FloatArray]:
    """Standard deviation of the difference of two arms, and Welch's degrees of freedom of it.

    Args:
        one: variances of the first arm.
        other: those of the second.
        df: degrees of freedom of each.
    """
    total, squares = np.asarray(one + other), np.asarray(one**2 + other**2)
    return np.sqrt(total), df * np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)


def launch_table(arms: Sequence[Arm], unit: Unit) -> FloatArray:
    """Logarithm of seconds per unit, [launches, arms], of the launches of the first arm that all others pair with.

    Arms that took turns make a row only where all of them shared the launch: what disturbs it is then common to them.
    In order of seeds, as `speedup_of` has them; without a row for a single arm, and where an arm is stored.
    """
    if len(arms) < 2 or any(arm.stored for arm in arms):
        return np.empty((0, len(arms)))
    partners = [{base.run.id: other for base, other in pair_launches(arms[0], arm).pairs} for arm in arms[1:]]
    rows = [
        [base, *(found[base.run.id] for found in partners)]
        for base in sorted(arms[0].runs, key=lambda run: run.facts.seed)
        if all(base.run.id in found for found in partners)
    ]
    rows = [row for row in rows if len({run.facts.together for run in row}) == 1]
    table = [[math.log(seconds_per_unit(run, unit)) for run in row] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(arms))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values in the order given: the k-th smallest of m times m - k + 1, never falling, at most 1."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order]), 1)
    return [float(value) for value in adjusted]


def p_value(difference: float, standard_error: float, df: float) -> float:
    """Chance that Student's t with `df` degrees of freedom is as far from 0, on either side."""
    from scipy.special import stdtr

    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return 2 * float(stdtr(df, -abs(difference) / standard_error))


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

"""Any arm against any arm: what every two of them show, and which are told apart when all are asked at once.

Arms that ran together share what disturbed their launches. Of a table of launches by arms, of the logarithm of seconds
per unit of work, the model is launch + arm + residual; the residuals that launch and arm leave give one spread for all
pairs, with (k-1)(L-1) degrees of freedom for k arms and L launches that have all of them, where a pair by itself has
L-1. Every pair is a t test of the difference of its arms, and the p values of all pairs are adjusted together (S. Holm,
A simple sequentially rejective multiple test procedure, Scand. J. Stat. 6, 1979): told apart are the pairs whose
adjusted value is below 1 - confidence, and the chance of a single false one among all of them is no more than that.

Pooling assumes that the arms' residuals spread alike and independently of each other. Where one arm's spread is larger,
pairs without it look less certain than they are, and its own more. With two stages the spread is the first stage's, as
in intervals (`two_stage`). Where no two launches have all arms, or an arm is stored and met the others in another
session, each pair has the spread of its own launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparison import Comparison, Terms, compare_two
from dynbench.analysis.pairing import pair_launches
from dynbench.analysis.power import pair_spread
from dynbench.analysis.questions.base import Unit
from dynbench.analysis.record import PairRecord, Spread
from dynbench.analysis.speedup import seconds_per_unit
from dynbench.analysis.stats import student_t_quantile
from dynbench.analysis.verdict import Verdict

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """The spread of the residuals of all arms.

    Attributes:
        residual: standard deviation of a launch of an arm, of logarithms; a pair's log ratio has √2 times that.
        df: its degrees of freedom.
    """

    residual: float
    df: int


@dataclass(frozen=True)
class ArmPair:
    """Two arms, and what is known of them among all pairs.

    Attributes:
        comparison: of the two, as of a candidate with the baseline.
        spread: whose spread `p` rests on; None where there is no `p`.
        pooled: low and high end of the interval of this one pair from the pooled spread; None without that.
        p: chance of so large a difference between equal arms; None for one paired launch, and for arms that cannot be
            compared.
        p_holm: the same, held jointly over all pairs.
    """

    comparison: Comparison
    spread: Spread | None = None
    pooled: tuple[float, float] | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def faster(self) -> str | None:
        """The arm told apart as the faster one; None where neither is, as between arms of one configuration."""
        item = self.comparison
        if self.p_holm is None or item.aa or self.p_holm >= 1 - item.confidence:
            return None
        return item.candidate.label if item.speedup.estimate > 1 else item.baseline.label

    def record(self, id: str = "", path: str = "") -> PairRecord:
        """What is kept and printed of it."""
        return PairRecord(
            **dict(self.comparison.record(id, path)),
            spread=self.spread,
            pooled_ci95=self.pooled,
            p_holm=self.p_holm,
            faster=self.faster,
        )


def compare_pairs(terms: Terms, comparisons: Sequence[Comparison]) -> list[ArmPair]:
    """Every arm against every later one; two arms without launches to pair are left out.

    Args:
        terms: what the comparisons share.
        comparisons: those with the first arm.
    """
    forced = replace(terms, force=True)
    known = {item.candidate.label: item for item in comparisons}
    found = [
        known[other.label] if one is terms.arms[0] else compare_two(forced, one, other)
        for index, one in enumerate(terms.arms)
        for other in terms.arms[index + 1 :]
        if one is terms.arms[0] or pair_launches(one, other, partial=True).pairs
    ]
    pooled = pooled_spread(launch_table(terms.arms, terms.question.unit), terms.first)
    pairs = [_tested(item, pooled) for item in found]
    values = [pair.p for pair in pairs if pair.p is not None]
    adjusted = iter(holm(values))
    return [pair if pair.p is None else replace(pair, p_holm=next(adjusted)) for pair in pairs]


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


def pooled_spread(table: FloatArray, first: int | None = None) -> Pooled | None:
    """The spread that launch and arm leave.

    Args:
        table: logarithms, [launches, arms].
        first: launches of the first stage, whose spread is kept; None is all.

    Returns:
        None with fewer than two launches or two arms.
    """
    rows = table[:first]
    df = (rows.shape[0] - 1) * (rows.shape[1] - 1)
    if min(rows.shape) < 2:
        return None
    residuals = rows - rows.mean(axis=0) - rows.mean(axis=1, keepdims=True) + rows.mean()
    return Pooled(math.sqrt(float((residuals**2).sum()) / df), df)


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


def _tested(item: Comparison, pooled: Pooled | None) -> ArmPair:
    own = pair_spread(item.speedup, item.confidence)
    if own is None or item.verdict is Verdict.INCOMPARABLE:
        return ArmPair(item)
    estimate, pairs = math.log(item.speedup.estimate), item.speedup.pairs
    if pooled is None:
        return ArmPair(item, "own", p=p_value(estimate, own / math.sqrt(pairs), item.speedup.df))
    error = pooled.residual * math.sqrt(2 / pairs)
    half = student_t_quantile(0.5 + item.confidence / 2, pooled.df) * error
    interval = math.exp(estimate - half), math.exp(estimate + half)
    return ArmPair(item, "pooled", interval, p_value(estimate, error, pooled.df))

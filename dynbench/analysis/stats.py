"""The statistics of comparisons: small, and tested against known answers and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

CONSISTENCY = 1.4826
"""Median absolute deviation to standard deviation, for normal data."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two arms with its confidence interval.

    Attributes:
        estimate: geometric mean of the pairs' ratios.
        low, high: ends of the interval, None with a single pair.
        pairs: number of pairs.
        first: number of those whose spread the interval has, of a comparison in two stages; None is all.
    """

    estimate: float
    low: float | None
    high: float | None
    pairs: int
    first: int | None = None

    @property
    def df(self) -> int:
        """Degrees of freedom of the spread that the interval has."""
        return min(self.first or self.pairs, self.pairs) - 1

    @property
    def half_width(self) -> float | None:
        """Half the interval's width on the log scale, for small values the part by which the ratio may be off."""
        if self.low is None or self.high is None:
            return None
        return (math.log(self.high) - math.log(self.low)) / 2

    @property
    def noise(self) -> float:
        """Of two equal arms: the part by which they came out different, or the interval's half-width if larger."""
        return math.expm1(max(abs(math.log(self.estimate)), self.half_width or 0.0))


def paired_ratio(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = 0.95, first: int | None = None
) -> Ratio:
    """Ratio of paired totals with a t interval on the mean of their logarithms.

    Launches in ABBA order are paired as they ran, so a linear drift enters neighbouring pairs with opposite signs and
    cancels in the mean.

    Args:
        numerator: one positive total per launch.
        denominator: the same of the other arm, paired by position.
        confidence: level of the interval.
        first: launches of the first stage, 2 or more, whose spread the interval keeps (`two_stage`); None has that of
            all.

    Raises:
        ValueError: lengths differ, nothing to pair, a total that is not positive and finite, or no first stage.
    """
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if top.shape != bottom.shape or top.size == 0:
        raise ValueError(f"pairs need as many totals on both sides, not {top.size} and {bottom.size}")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and (top > 0).all() and (bottom > 0).all()):
        raise ValueError("totals must be positive and finite")
    if first is not None and first < 2:
        raise ValueError(f"a first stage of {first} launches has no spread")
    logs = np.log(top) - np.log(bottom)
    mean = float(logs.mean())
    if logs.size == 1:
        return Ratio(math.exp(mean), None, None, 1, first)
    spread = logs[:first]
    standard_error = float(spread.std(ddof=1)) / math.sqrt(logs.size)
    half = student_t_quantile(0.5 + confidence / 2, spread.size - 1) * standard_error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), logs.size, first)


def student_t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution with `df` degrees of freedom.

    Raises:
        ValueError: p outside (0, 1) or df not positive.
    """
    from scipy.special import stdtrit

    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"no quantile for p={p}, df={df}")
    return float(stdtrit(df, p))


def coefficient_of_variation(values: ArrayLike) -> float:
    """Sample standard deviation over the mean."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1) / array.mean())


def robust_z(value: float, others: ArrayLike) -> float:
    """Distance of a value from the others' median, in standard deviations estimated from their absolute deviations."""
    array = np.asarray(others, dtype=np.float64)
    centre = float(np.median(array))
    scale = CONSISTENCY * float(np.median(np.abs(array - centre)))
    if scale == 0:
        return 0.0 if value == centre else math.inf
    return (value - centre) / scale


def relative_drift(values: ArrayLike) -> float:
    """Change from the first to the last value along the Theil-Sen line, as a part of the median; outliers hardly count.

    The median of all pairwise slopes (Sen, JASA 63, 1968), over at most 200 block means so that it stays cheap.
    """
    array = np.asarray(values, dtype=np.float64)
    blocks = np.array([block.mean() for block in np.array_split(array, min(array.size, 200))])
    if blocks.size < 2:
        return 0.0
    first, second = np.triu_indices(blocks.size, k=1)
    slope = float(np.median((blocks[second] - blocks[first]) / (second - first)))
    return slope * (blocks.size - 1) / float(np.median(array))


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of two values or more, and the ends of its t interval."""
    array = np.asarray(values, dtype=np.float64)
    half = student_t_quantile(0.5 + confidence / 2, array.size - 1) * float(array.std(ddof=1)) / math.sqrt(array.size)
    mean = float(array.mean())
    return mean, mean - half, mean + half

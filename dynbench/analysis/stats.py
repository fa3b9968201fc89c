"""The statistics of comparisons: intervals of paired ratios, and the power of a number of launches."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

CONSISTENCY = 1.4826
"""Median absolute deviation to standard deviation, for normal data."""
OUTLIER = 3.0
"""Standard deviations from the median beyond which a value counts as if it were there."""
POWER = 0.9
"""How often a difference of the stated size is to be seen."""
MOST_LAUNCHES = 1000
"""Where the search for a number of launches ends: nobody makes more."""


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
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

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


def without_outliers(values: ArrayLike) -> FloatArray:
    """The values, those brought in that lie further than `OUTLIER` standard deviations from the median.

    The deviation is estimated from the absolute ones, so that what lies far out does not widen the bounds.
    """
    array = np.asarray(values, dtype=np.float64)
    centre = np.median(array)
    reach = OUTLIER * CONSISTENCY * np.median(np.abs(array - centre))
    return np.clip(array, centre - reach, centre + reach)


def robust_z(value: float, others: ArrayLike) -> float:
    """Distance of a value from the others' median, in standard deviations of the others without their outliers."""
    inner = without_outliers(others)
    centre, scale = float(np.median(inner)), float(inner.std(ddof=1))
    if scale == 0:
        return 0.0 if value == centre else math.copysign(math.inf, value - centre)
    return (value - centre) / scale


def theil_sen(x: FloatArray, y: FloatArray) -> float:
    """The median of all pairwise slopes (Sen, JASA 63, 1968), which outliers hardly move; 0 where all x are equal."""
    first, second = np.triu_indices(x.size, k=1)
    apart = x[second] - x[first]
    told = apart != 0
    return float(np.median((y[second] - y[first])[told] / apart[told])) if told.any() else 0.0


def relative_drift(values: ArrayLike) -> float:
    """Change from the first to the last value along the Theil-Sen line, as a part of the median; outliers hardly count.

    Over at most 200 block means, so that it stays cheap.
    """
    array = np.asarray(values, dtype=np.float64)
    blocks = np.array([block.mean() for block in np.array_split(array, min(array.size, 200))])
    slope = theil_sen(np.arange(blocks.size, dtype=np.float64), blocks)
    return slope * (blocks.size - 1) / float(np.median(array))


def growth_p_value(values: ArrayLike, beside: ArrayLike) -> float:
    """One-sided p of Student's t test that values do not grow with their place; their outliers count less.

    Args:
        values: three or more.
        beside: what the values were made free of, as their line on it; its own change with the place is not theirs.

    Returns:
        0.5 where nothing can be told: all values are equal, or all of the place is in `beside`.
    """
    from scipy.special import stdtr

    inner = without_outliers(values)
    inner -= inner.mean()
    known = np.array(beside, dtype=np.float64)
    known -= known.mean()
    place = np.arange(inner.size) - (inner.size - 1) / 2
    if known.any():
        place = place - known * (known @ place) / (known @ known)
    of_both = math.sqrt((inner @ inner) * (place @ place))
    if of_both == 0:
        return 0.5
    correlation, df = float(inner @ place) / of_both, inner.size - 2 - bool(known.any())
    return float(stdtr(df, -correlation * math.sqrt(df / max(1 - correlation**2, np.finfo(float).eps))))


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of two values or more, and the ends of its t interval."""
    array = np.asarray(values, dtype=np.float64)
    half = student_t_quantile(0.5 + confidence / 2, array.size - 1) * float(array.std(ddof=1)) / math.sqrt(array.size)
    mean = float(array.mean())
    return mean, mean - half, mean + half


def pair_spread(speedup: Ratio, confidence: float) -> float | None:
    """Standard deviation of the pairs' log ratios, from the interval they gave; None without one."""
    if speedup.half_width is None:
        return None
    return speedup.half_width * math.sqrt(speedup.pairs) / student_t_quantile(0.5 + confidence / 2, speedup.df)


def smallest_shown(spread: float, pairs: int, confidence: float = 0.95, df: float | None = None) -> float:
    """Smallest difference whose interval leaves none out with probability `POWER`, on the log scale.

    By the noncentral t distribution (Chow, Shao and Wang, Sample Size Calculations in Clinical Research, section 3.1).

    Args:
        spread: standard deviation of the pairs' log ratios.
        pairs: paired launches, at least 2.
        confidence: level of the interval.
        df: degrees of freedom of the spread, where it is not that of all pairs.
    """
    from scipy.special import nctdtrinc

    df = pairs - 1 if df is None else df
    noncentrality = nctdtrinc(df, 1 - POWER, student_t_quantile(0.5 + confidence / 2, df))
    return float(noncentrality) * spread / math.sqrt(pairs)


def reach(pairs: int, confidence: float, df: float) -> float:
    """How many times the spread of the log ratios the interval of so many pairs reaches to either side."""
    return student_t_quantile(0.5 + confidence / 2, df) / math.sqrt(pairs)


def launches_needed(
    difference: float, spread: float, confidence: float = 0.95, df_per_launch: float = 1.0
) -> int | None:
    """Fewest launches per arm, even as ABBA needs them, that show a difference; None above `MOST_LAUNCHES`.

    Args:
        difference: on the log scale, positive.
        spread: standard deviation of the pairs' log ratios.
        confidence: level of the interval.
        df_per_launch: degrees of freedom that every launch but the first adds.
    """

    def shown(half: int) -> float:
        return smallest_shown(spread, 2 * half, confidence, df_per_launch * (2 * half - 1))

    halves = range(1, MOST_LAUNCHES // 2 + 1)
    found = bisect_left(halves, True, key=lambda half: shown(half) <= difference)
    return 2 * halves[found] if found < len(halves) else None

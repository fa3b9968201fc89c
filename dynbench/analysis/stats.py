"""The statistics of comparisons: intervals of paired ratios, the power of a number of launches, and Stein's two stages.

A first stage of n1 launches gives the spread s1 of their log ratios. For a half-width h the rule asks for
N = max(n1, ceil((t s1 / h)^2)) launches, t the quantile with n1 - 1 degrees of freedom, and the interval is
mean ± t s1 / sqrt(N): the mean over all launches, the spread of the first stage (C. Stein, A two-sample test for a
linear hypothesis whose power is independent of the variance, Ann. Math. Stat. 16, 1945; Chow, Shao and Wang, Sample
Size Calculations in Clinical Research). N depends on the launches through s1 alone, which for normal log ratios is
independent of their mean, so the coverage is exact whatever the spread. Stopping as soon as the interval over all
launches so far is narrow enough has no such coverage: it stops where the spread looks small by chance. For the same
reason the rule stays exact for a ratio of two other arms of the same launches, and with a limit on N set beforehand.

What it rests on is that launches are independent. Where each is like the one before (log ratios AR(1) with a
correlation of 0.3, a first stage of 8), 95 % intervals cover the truth in 85 to 88 % of simulated comparisons; those of
a fixed number of launches, as many as the rule asks for, in as many: the loss is the correlation's, not the rule's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

CONSISTENCY = 1.4826
"""Median absolute deviation to standard deviation, for normal data."""
_OUTLIER = 3.0
"""Standard deviations from the median beyond which a value counts as if it were there."""
POWER = 0.9
"""How often a difference of the stated size is to be seen."""
FEWEST_PAIRS = 4
"""Pairs of launches below which an interval means little: the launch is the unit of inference, not the step."""
MOST_LAUNCHES = 1000
"""Where the search for a number of launches ends: nobody makes more."""


class Ratio(NamedTuple):
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
        first: launches of the first stage, 2 or more, whose spread the interval keeps (`plan_launches`); None has that
            of all.

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
    """The values, those brought in that lie further than `_OUTLIER` standard deviations from the median.

    The deviation is estimated from the absolute ones, so that what lies far out does not widen the bounds.
    """
    array = np.asarray(values, dtype=np.float64)
    centre = np.median(array)
    reach = _OUTLIER * CONSISTENCY * np.median(np.abs(array - centre))
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
    distinct = apart != 0
    return float(np.median((y[second] - y[first])[distinct] / apart[distinct])) if distinct.any() else 0.0


def relative_drift(values: ArrayLike) -> float:
    """Change from the first to the last value along the Theil-Sen line, as a part of the median; outliers hardly count.

    Over at most 200 block means, so that it stays cheap.
    """
    array = np.asarray(values, dtype=np.float64)
    blocks = array if array.size <= 200 else np.array([block.mean() for block in np.array_split(array, 200)])
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


def launches_needed(difference: float, spread: float, confidence: float, df_per_launch: float) -> int | None:
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


CONTRADICTION = 0.01
"""A later spread that launches of one spread exceed less often than this contradicts the first stage."""

LogRatios = Sequence[float]


class Plan(NamedTuple):
    """What the first stage asks for.

    Attributes:
        first: launches of the first stage.
        needed: launches in all that give every candidate the wanted interval.
        launches: launches in all to make: those needed, less where a limit forbids them.
        half_width: what these give, as a part of the ratio, where it is widest; the wanted one or less without a limit.
    """

    first: int
    needed: int
    launches: int
    half_width: float


def plan_launches(
    first_stage: Sequence[LogRatios],
    half_width: float,
    confidence: float = 0.95,
    *,
    most_launches: int | None = None,
    most_s: float | None = None,
    launch_s: float | None = None,
) -> Plan:
    """How many launches the intervals of all candidates need.

    Args:
        first_stage: log ratios against the baseline of every candidate, one per launch of the first stage; of launches
            that all candidates have.
        half_width: wanted half-width of the interval as a part of the ratio, like 0.03.
        confidence: level of the interval.
        most_launches: limit of launches in all.
        most_s: limit of the time of all launches, those of the first stage included, seconds.
        launch_s: what a launch takes, seconds.

    Raises:
        ValueError: no candidate, candidates with different numbers of launches, fewer than two launches, or a
            half-width or time that is not positive.
    """
    counts = {len(logs) for logs in first_stage}
    if len(counts) != 1 or min(counts) < 2:
        raise ValueError(f"the first stage needs as many launches of every candidate, two or more, not {counts or 0}")
    if not half_width > 0 or (most_s is not None and not (launch_s is not None and launch_s > 0)):
        raise ValueError(f"no number of launches for a half-width of {half_width} at {launch_s} s each")
    (first,) = counts
    spread = max(_spread(logs) for logs in first_stage)
    quantile = student_t_quantile(0.5 + confidence / 2, first - 1)
    needed = max(first, math.ceil((quantile * spread / math.log1p(half_width)) ** 2))
    limits = [most_launches] if most_launches is not None else []
    if most_s is not None and launch_s is not None:
        limits.append(math.floor(most_s / launch_s))
    launches = max(first, min([needed, *limits]))
    return Plan(first, needed, launches, math.expm1(quantile * spread / math.sqrt(launches)))


class LaterSpread(NamedTuple):
    """The launches after the first stage against those of it.

    Attributes:
        first, later: standard deviations of the log ratios.
        p: how often the later ones would spread as much more by chance.
    """

    first: float
    later: float
    p: float

    @property
    def contradicts(self) -> bool:
        """Whether the interval, which keeps the first stage's spread, is narrower than the launches bear out."""
        return self.p < CONTRADICTION


def later_spread(logs: LogRatios, first: int) -> LaterSpread | None:
    """Whether the launches after the first stage spread more than it did: F test of the two variances, upper side.

    A later spread that is smaller is no fault: the interval is wider than it had to be, and covers the truth more often
    than it says. Launches of one spread are told to contradict in at most `CONTRADICTION` of comparisons, and in fewer
    where the first stage chose their number: one that spreads little by chance asks for few.

    Args:
        logs: log ratios of all launches, in the order in which they ran.
        first: how many of them are the first stage.

    Returns:
        None with fewer than two launches on either side.
    """
    from scipy.special import fdtrc

    head, tail = logs[:first], logs[first:]
    if len(head) < 2 or len(tail) < 2:
        return None
    before, after = _spread(head), _spread(tail)
    if before == 0:
        return LaterSpread(before, after, 1.0 if after == 0 else 0.0)
    return LaterSpread(before, after, float(fdtrc(len(tail) - 1, len(head) - 1, (after / before) ** 2)))


def _spread(logs: LogRatios) -> float:
    return float(np.std(np.asarray(logs, dtype=np.float64), ddof=1))

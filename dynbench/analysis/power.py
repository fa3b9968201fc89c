"""How small a difference so many launches can show, and how many launches a difference needs."""

from __future__ import annotations

import math
from bisect import bisect_left

from dynbench.analysis.stats import Ratio, student_t_quantile

POWER = 0.9
"""How often a difference of the stated size is to be seen."""
MOST_LAUNCHES = 1000
"""Where the search for a number of launches ends: nobody makes more."""


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

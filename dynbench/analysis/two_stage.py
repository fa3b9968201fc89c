"""As many launches as an interval of a wanted width needs: Stein's two-stage rule.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbench.analysis.stats import student_t_quantile

CONTRADICTION = 0.01
"""A later spread that launches of one spread exceed less often than this contradicts the first stage."""

LogRatios = Sequence[float]


@dataclass(frozen=True)
class Plan:
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

    @property
    def more(self) -> int:
        """Launches still to make after the first stage."""
        return self.launches - self.first


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


@dataclass(frozen=True)
class LaterSpread:
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

"""How much of the time that the baseline loses a candidate gives back, and the ideal that arms of equal work share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from dynbench.analysis.arms import Arm, Pair, pair_launches
from dynbench.analysis.levels import comparison_level
from dynbench.analysis.measure import lookup
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.record import Level
from dynbench.analysis.waste import compute_rows, fit_compute, relative_speeds
from dynbench.runs.phrase import Phrase

_FIT_ERROR = 0.05
"""A candidate passes the bound, which is fitted, by at most this part of its time, and has then recovered all. One that
passes it further does what the fitted cost says cannot be."""
LEAST_LOSS = 0.01
"""A loss below this part of the baseline's time is within its noise; no share of it is stated."""
_NO_SHARE = 0.005
"""A recovered share below this rounds to 0 %; of a candidate slower than the baseline it is negative."""


def share_ideal(arms: Sequence[Arm], summaries: Mapping[str, Mapping[str, object]]) -> list[Arm]:
    """The arms with `MergedRun.ideal_ms` of their launches set.

    Those that did the baseline's work, at level `step` or `window` on as many ranks of the same speeds, share the least
    of their own ideals per real token, means over whole launches. The others have none; nor has any where none did the
    baseline's work. A single arm keeps its own.

    Args:
        arms: the baseline comes first.
        summaries: by id of the run, with its own ideal.
    """
    baseline, *others = arms
    if not others:
        return [baseline]
    sharing = [arm.label for arm in others if _of_same_work(baseline, arm)]
    ideals = [_own_ideal(arm, summaries) for arm in arms if sharing and arm.label in (baseline.label, *sharing)]
    least = min((ideal for ideal in ideals if ideal is not None), default=math.nan)
    return [_with_ideal(arm, least if arm.label in (baseline.label, *sharing) else math.nan) for arm in arms]


def _of_same_work(baseline: Arm, arm: Arm) -> bool:
    one, other = baseline.runs[0], arm.runs[0]
    alike = one.workers == other.workers
    alike = alike and one.facts.config.launch.slowdown == other.facts.config.launch.slowdown
    pairs = pair_launches(baseline, arm).pairs if alike else ()
    return bool(pairs) and comparison_level(pairs) in ("step", "window")


def _own_ideal(arm: Arm, summaries: Mapping[str, Mapping[str, object]]) -> float | None:
    """Ms per real token, mean over whole launches; None where one of them can state none."""
    found = []
    for run in arm.whole:
        s = lookup(summaries[run.run.id], "waste.s")
        if s is None:
            return None
        found.append(run.time_ms / s / _tokens(run))
    return fmean(found)


def _with_ideal(arm: Arm, per_token_ms: float) -> Arm:
    return replace(arm, runs=tuple(replace(run, ideal_ms=per_token_ms * _tokens(run)) for run in arm.runs))


def _tokens(run: MergedRun) -> float:
    return float(run.measured["real_tokens"].sum())


@dataclass(frozen=True, slots=True)
class Recovery:
    """A candidate between the baseline and the bound.

    Attributes:
        bound_speedup: baseline's time over that of the bound.
        within_steps: the bound is on plans that keep the samples of every step; else on plans that move them between
            steps, which it is never above.
        share: (baseline - candidate) / (baseline - bound), each in seconds per real token, at most 1; None where the
            baseline loses next to nothing.
        overhead_share: part of the baseline's slowest rank's compute that does not grow with its tokens (alpha, once
            per micro-batch); 1 where a step is all launch overhead.
    """

    bound_speedup: float
    within_steps: bool
    share: float | None
    overhead_share: float

    def sentence(self, baseline: str) -> Phrase:
        """For people, without a full stop."""
        case = "no_loss" if self.share is None else "nothing" if self.share < _NO_SHARE else "share"
        values = {"bound": self.bound_speedup, "share": self.share, "within_steps": self.within_steps}
        return Phrase.of("recovery", case=case, baseline=baseline, **values)


def recovery(pairs: Sequence[Pair], level: Level = "step") -> Recovery | None:
    """What the candidates of the pairs recover together.

    The bound leaves everything of a step as the baseline measured it but the slowest rank's compute, which becomes the
    least that a plan of the step's samples could reach with one micro-batch per rank and no padding, as
    `schedule.bounds` has it: max((G*alpha + sum(beta*L + gamma*L²)) / sum(speed), (alpha + beta*Lmax + gamma*Lmax²) /
    fastest). The coefficients are fitted to the baseline's own rows, its ranks brought to full speed.

    A plan that moves samples between steps, as a window does, may pass that: it can put long samples side by side, so
    that fewer steps wait for one. What no plan of the same samples in as many steps passes is the mean over ranks, the
    first term, summed over the steps.

    Args:
        pairs: launches of the baseline and of the candidate.
        level: how far they did the same work; below `step` the candidate moved samples between steps, and at `tokens`
            its steps are of other batches than those that the bound is of.

    Returns:
        None where nothing is known: the level is `tokens`, the rows tell no cost (`fit_compute`), the arms' ranks were
        slowed differently, or the candidate is faster than the bound beyond `_FIT_ERROR`, so that the fitted cost is
        not what its steps cost.
    """
    if level == "tokens":
        return None
    within_steps = level == "step"
    baseline = candidate = bound = overhead = 0.0
    for base, other in pairs:
        found = _bound(base, other, within_steps)
        if found is None:
            return None
        bound_ms, overhead_share = found
        tokens = float(base.measured["real_tokens"].sum())
        baseline += base.time_ms / tokens
        candidate += other.time_ms / float(other.measured["real_tokens"].sum())
        bound += bound_ms / tokens
        overhead += overhead_share / len(pairs)
    if bound > (1 + _FIT_ERROR) * candidate:
        return None
    lost = baseline - bound
    share = min((baseline - candidate) / lost, 1.0) if lost > LEAST_LOSS * baseline else None
    return Recovery(baseline / bound, within_steps, share, overhead)


def _bound(base: MergedRun, other: MergedRun, within_steps: bool) -> tuple[float, float] | None:
    """Time of the baseline's measured steps, ms, were their compute as short as it can be; and its overhead's share."""
    if base.facts.config.launch.slowdown != other.facts.config.launch.slowdown:
        return None
    speeds = relative_speeds(base, other)
    rows = compute_rows(base, speeds)
    fit = fit_compute(rows)
    if fit is None:
        return None
    steps = base.measured
    tokens, tokens2, longest = (
        steps[name].to_numpy().astype(np.float64) for name in ("real_tokens", "real_tokens2", "longest")
    )
    least = (len(speeds) * fit.alpha + fit.of_tokens(tokens, tokens2)) / speeds.sum()
    slowest = steps["compute_ms_max"].to_numpy().astype(np.float64)
    if within_steps:
        least = np.maximum(least, (fit.alpha + fit.of_tokens(longest, longest**2)) / speeds.max())
        bound_ms = base.time_ms - float(np.maximum(slowest - least, 0.0).sum())
    else:
        bound_ms = base.time_ms - max(float((slowest - least).sum()), 0.0)
    return bound_ms, float(min(1.0, fit.alpha * rows.micro_batches.mean() / slowest.mean()))

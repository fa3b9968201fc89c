"""One ideal for arms that computed the same samples, so that the slower arm is never the nearer to its ideal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dynbench.analysis.arms import Arm
from dynbench.analysis.levels import comparison_level
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.metrics import lookup
from dynbench.analysis.pairing import pair_launches


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

"""The speed-up that paired launches show: seconds per unit of work of one arm over those of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.analysis.arms import Pair
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.questions.base import SAMPLES, TOKENS, Unit
from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.config.image_rules import has_lengths


def unit_of(merged: MergedRun) -> Unit:
    """What the work of a run is counted in."""
    return TOKENS if has_lengths(merged.facts.config) else SAMPLES


def seconds_per_unit(merged: MergedRun, unit: Unit = TOKENS) -> float:
    """Time of the measured steps over their work, seconds."""
    return merged.time_ms / 1000 / float(merged.measured[unit.column].sum())


def speedup_of(pairs: Sequence[Pair], unit: Unit, confidence: float, first: int | None = None) -> Ratio:
    """The ratio of the arms of the pairs, with its interval.

    Args:
        pairs: launches of the one arm and of the other.
        unit: of work.
        confidence: level of the interval.
        first: launches of the first stage, whose spread is kept; those of the lowest seeds, as a comparison numbers its
            launches, so that one that had to be repeated later stays in its stage.
    """
    before, after = ([seconds_per_unit(pair[side], unit) for pair in _by_seed(pairs)] for side in (0, 1))
    return paired_ratio(before, after, confidence, first)


def log_ratios(pairs: Sequence[Pair], unit: Unit) -> list[float]:
    """Logarithm of every pair's ratio, in order of seeds."""
    return [
        float(np.log(seconds_per_unit(one, unit) / seconds_per_unit(other, unit))) for one, other in _by_seed(pairs)
    ]


def _by_seed(pairs: Sequence[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair[0].facts.seed)

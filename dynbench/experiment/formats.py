"""How a comparison's numbers read in a report and on the terminal."""

from __future__ import annotations

from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.tables import format_interval, format_ratio
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.subject import Subject
from dynbench.report import NBSP, number, percent

__all__ = [
    "NBSP",
    "interval",
    "loss_difference",
    "loss_drift",
    "number",
    "percent",
    "ratio",
    "saved_hours",
    "saved_interval",
]

HOURS = 1000
"""GPU-hours of the baseline that savings are counted in."""


def ratio(value: float | None) -> str | None:
    """`1.314`; None where nothing was measured."""
    return format_ratio(value) or None


def interval(comparison: ComparisonRecord) -> str | None:
    """`[1.251, 1.380]`, the interval that the verdict rests on; None for an estimate."""
    return format_interval(comparison.interval).replace(" ", NBSP) or None


def saved_hours(comparison: ComparisonRecord, subject: Subject) -> str | None:
    """GPU-hours saved per 1,000 of the baseline, by the speed-up s, 1000 * (1 - 1/s).

    None but for arms found FASTER, as no other verdict says that hours are saved; of arms on different numbers of
    ranks, an hour of which is not as many GPU-hours; and at level `tokens`, where other steps are taken over the same
    tokens, and may need more of them.
    """
    return f"{_saved(comparison.speedup):.0f}" if _saves(comparison, subject) else None


def saved_interval(comparison: ComparisonRecord, subject: Subject) -> str | None:
    """The same for both ends of the interval."""
    if comparison.interval is None or not _saves(comparison, subject):
        return None
    low, high = comparison.interval
    return f"[{_saved(low):.0f},{NBSP}{_saved(high):.0f}]"


def loss_difference(item: ComparisonRecord) -> str | None:
    """Largest relative difference of the loss between paired steps; None where it was not compared."""
    return None if item.loss_max_rel_diff is None else f"{item.loss_max_rel_diff:.1e}"


def loss_drift(item: ComparisonRecord) -> str | None:
    """How far the mean training loss is above the baseline's; None where it is not finite."""
    return None if item.loss_drift is None else f"{100 * item.loss_drift:+.2f}{NBSP}%"


def _saves(comparison: ComparisonRecord, subject: Subject) -> bool:
    found = comparison.verdict is Verdict.FASTER and not comparison.aa
    return found and comparison.level != "tokens" and subject.same_ranks(comparison)


def _saved(speed: float) -> float:
    return HOURS * (1 - 1 / speed)

"""How a comparison's numbers read in a report and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.analysis.tables import format_value

NBSP = "\N{NO-BREAK SPACE}"
HOURS = 1000
"""GPU-hours of the baseline that savings are counted in."""


def speedup(comparison: Mapping[str, object]) -> str | None:
    """`1.314`; None where nothing was measured."""
    value = comparison.get("speedup")
    return f"{value:.3f}" if isinstance(value, int | float) else None


def interval(comparison: Mapping[str, object]) -> str | None:
    """`[1.251, 1.380]`; None for an estimate."""
    ends = _ends(comparison)
    return None if ends is None else f"[{ends[0]:.3f},{NBSP}{ends[1]:.3f}]"


def saved_hours(comparison: Mapping[str, object]) -> str | None:
    """GPU-hours saved per 1,000 of the baseline, by the speed-up s, 1000 * (1 - 1/s); None for equal arms."""
    value = None if comparison.get("aa") else comparison.get("speedup")
    return f"{_saved(value):.0f}" if isinstance(value, int | float) else None


def saved_interval(comparison: Mapping[str, object]) -> str | None:
    """The same for both ends of the interval."""
    ends = None if comparison.get("aa") else _ends(comparison)
    return None if ends is None else f"[{_saved(ends[0]):.0f},{NBSP}{_saved(ends[1]):.0f}]"


def number(value: float | None) -> str | None:
    """`1,517`, `237.3`, `0.061`: three or four digits."""
    if value is None:
        return None
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    return format_value(value, "")


def percent(fraction: float | None) -> str | None:
    """`12.3 %`."""
    return None if fraction is None else f"{100 * fraction:.1f}{NBSP}%"


def _ends(comparison: Mapping[str, object]) -> tuple[float, float] | None:
    match comparison.get("ci95"):
        case [float() | int() as low, float() | int() as high]:
            return float(low), float(high)
    return None


def _saved(speed: float) -> float:
    return HOURS * (1 - 1 / speed)

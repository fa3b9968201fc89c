"""One value per step as lines over the steps: the smoothed line in front, the raw values faintly behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView

HEADROOM = 1.15
"""The axis ends this much above what it must show."""


def draw_lines(axes: Axes, arms: Sequence[ArmView], column: str) -> pl.DataFrame:
    """Draws a column of the step tables, one line per arm, on an axis from zero.

    Single steps far above the rest are left outside the axis rather than flattening the lines.

    Returns:
        The plotted numbers: arm, step, value, smoothed.
    """
    tables, tops = [], []
    for index, arm in enumerate(arms):
        step, values = arm.steps["step"].to_numpy(), arm.steps[column].to_numpy().astype(np.float64)
        smoothed = style.smooth(values, style.smoothing_window(len(values)))
        axes.plot(step, values, color=style.color(index), linewidth=0.7, alpha=0.25)
        axes.plot(
            step,
            smoothed,
            color=style.color(index),
            label=arm.label,
            linestyle=style.dashes(index),
            marker=style.marker(index),
            markersize=5,
            markevery=(len(step) // 16 * (2 * index + 1) // (2 * len(arms)), max(1, len(step) // 8)),
        )
        tops.append(max(float(np.percentile(values, 99)), float(smoothed.max())))
        tables.append(pl.DataFrame({"arm": arm.label, "step": step, column: values, "smoothed": smoothed}))
    axes.set_ylim(0, max(tops) * HEADROOM or 1.0)
    axes.margins(x=0.01)
    return pl.concat(tables)


def smoothing_note(arms: Sequence[ArmView]) -> str:
    """The sentence about smoothing for the caption."""
    window = style.smoothing_window(max(arm.steps.height for arm in arms))
    averaged = " of the mean over launches" if any(len(arm.runs) > 1 for arm in arms) else ""
    return f"Lines: rolling mean over {window} steps{averaged}; raw values faint; the top 1 % may leave the axis."

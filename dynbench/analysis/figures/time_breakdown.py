"""Where the time of a mean step goes: one stacked bar per arm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.phases import PHASES, draw_bars
from dynbench.analysis.figures.views import ArmView, caption, drawable

_LABELLED = 0.05
"""Parts of at least this share of the longest bar carry their number."""


def time_breakdown(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Horizontal bars from zero, mean over ranks and steps; the bar's end is the mean step time over ranks."""
    arms = drawable(arms)
    if not arms:
        return None
    note = "Mean over ranks and steps; the bars end at the mean step time over ranks."
    figure, (axes,) = style.new_figure(
        "Where the time of a step goes", caption(arms, note), width_in=9, height_in=2.1 + 0.5 * len(arms)
    )
    parts = pl.DataFrame({phase.column: [fmean(arm.steps[f"{phase.column}_mean"]) for arm in arms] for phase in PHASES})
    totals = [fmean(arm.steps["step_time_ms_mean"]) for arm in arms]
    draw_bars(axes, parts, 0.62)
    for index, row in enumerate(parts.iter_rows()):
        left = 0.0
        for phase, ms in zip(PHASES, row, strict=True):
            if ms > _LABELLED * max(totals):
                inside = style.INK if phase.hatch or phase.column == "other_ms" else "white"
                box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"} if phase.hatch else None
                look: dict[str, Any] = {"ha": "center", "va": "center", "color": inside, "fontsize": 9, "bbox": box}
                axes.text(left + ms / 2, index, style.digits(ms), **look)
            left += ms
        axes.text(left + 0.01 * max(totals), index, f"{style.digits(totals[index])} ms", va="center", fontweight="bold")
    axes.set_yticks(range(len(arms)), [arm.label for arm in arms])
    axes.invert_yaxis()
    axes.set_xlim(0, max(totals) * 1.12)
    axes.set_xlabel("time per step (ms)")
    style.legend_of_figure(figure, axes)
    table = parts.with_columns(arm=pl.Series([arm.label for arm in arms]))
    return style.Drawing(figure, table.unpivot(index="arm", variable_name="phase", value_name="ms"))

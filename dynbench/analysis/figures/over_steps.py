"""Values per step as lines over the steps: the smoothed line in front, the raw values faintly behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable

HEADROOM = 1.15
"""The axis ends this much above what it must show."""
SPREADS = (
    ("compute_ms", "compute time (ms)"),
    ("padded_tokens", "padded tokens"),
    ("peak_mem_mb", "peak memory (MB)"),
    ("step_time_ms", "step time (ms)"),
)
TOGETHER = "Ranks of one process group end a step together, so step time spreads little however unequal the work is."
UNKNOWN = "not known: arms share a process"
"""In place of a quantity that some arm has no numbers of."""


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


def step_time(arms: Sequence[ArmView]) -> style.Drawing | None:
    """How long a step lasts, a line per arm: the maximum over ranks, which is when a synchronous step ends."""
    arms = drawable(arms)
    if not arms:
        return None
    figure, (axes,) = style.new_figure("Step time: the slowest rank of each step", caption(arms, smoothing_note(arms)))
    table = draw_lines(axes, arms, "step_time_max_ms")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("step time, maximum over ranks (ms)")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)


def rank_spread(arms: Sequence[ArmView]) -> style.Drawing | None:
    """How unequal the ranks are within a step: standard deviation over ranks, one panel per quantity."""
    arms = drawable(arms)
    if not arms or arms[0].runs[0].workers < 2:
        return None
    note = "" if arms[0].runs[0].facts.virtual else TOGETHER
    figure, panels = style.new_figure(
        "Spread over ranks within each step",
        caption(arms, "Standard deviation over ranks.", smoothing_note(arms), note),
        rows=2,
        columns=2,
        width_in=10,
        height_in=6.8,
        share_x=True,
    )
    tables = []
    for axes, (name, title) in zip(panels, SPREADS, strict=True):
        axes.set_title(title)
        if any(arm.steps[f"{name}_std"].null_count() for arm in arms):
            axes.text(0.5, 0.5, UNKNOWN, ha="center", va="center", transform=axes.transAxes)
            axes.set_yticks([])
            continue
        drawn = draw_lines(axes, arms, f"{name}_std").rename({f"{name}_std": "std_over_ranks"})
        tables.append(drawn.with_columns(quantity=pl.lit(name)))
        axes.set_ylabel("std over ranks")
    for axes in panels[2:]:
        axes.set_xlabel("optimizer step")
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, pl.concat(tables).select("quantity", "arm", "step", "std_over_ranks", "smoothed"))

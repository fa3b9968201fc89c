"""How step times are distributed: the histogram, and the cumulative share with median and 95th percentile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable

BINS = 40
POINTS = 400
"""Points of one cumulative curve."""


def step_time_distribution(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Histogram on the left, cumulative share on the right, one colour per arm."""
    arms = drawable(arms)
    if not arms:
        return None
    values = [arm.all_steps["step_time_max_ms"].to_numpy() for arm in arms]
    top = max(float(np.percentile(times, 99.5)) for times in values) * 1.05
    note = "All launches pooled. Dots: median and 95th percentile. The last bin holds everything above it."
    figure, (histogram, cumulative) = style.new_figure(
        "Distribution of step time", caption(arms, note), columns=2, width_in=10, height_in=4.6
    )
    edges = np.linspace(0, top, BINS + 1)
    tables = []
    for index, (arm, times) in enumerate(zip(arms, values, strict=True)):
        share = np.histogram(np.minimum(times, top), edges)[0] / len(times)
        histogram.stairs(100 * share, edges, color=style.color(index), fill=True, alpha=0.25)
        look: dict[str, Any] = {"color": style.color(index), "linestyle": style.dashes(index), "label": arm.label}
        histogram.stairs(100 * share, edges, linewidth=1.6, **look)
        percents = np.linspace(0, 100, POINTS + 1)
        quantiles = np.percentile(times, percents)
        cumulative.plot(quantiles, percents, **look)
        for percent in (50, 95):
            x = float(np.percentile(times, percent))
            cumulative.plot([x], [percent], style.marker(index), color=style.color(index), markersize=7)
        tables += [
            pl.DataFrame({"arm": arm.label, "kind": "histogram", "step_time_ms": edges[:-1], "percent": 100 * share}),
            pl.DataFrame({"arm": arm.label, "kind": "cumulative", "step_time_ms": quantiles, "percent": percents}),
        ]
    x_label = "step time, maximum over ranks (ms)"
    style.label_axes(histogram, x_label, "steps (%)")
    style.label_axes(cumulative, x_label, "steps at most this long (%)")
    for axes in (histogram, cumulative):
        axes.set_xlim(0, top)
    cumulative.set_ylim(0, 102)
    for percent in (50, 95):
        cumulative.axhline(percent, color=style.FAINT_INK, linewidth=0.8, linestyle=":", zorder=0)
        cumulative.text(0.01 * top, percent, f"P{percent}", va="bottom", fontsize=8, color=style.FAINT_INK)
    style.legend_of_figure(figure, histogram)
    return style.Drawing(figure, pl.concat(tables))

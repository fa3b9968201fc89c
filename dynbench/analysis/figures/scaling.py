"""Throughput over the number of ranks, and how much of each rank is left: one marker per arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.speedup import seconds_per_unit, unit_of

HEADROOM = 1.1
"""The axes end this much above what they must show."""


def scaling(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Work per second on the left, efficiency on the right, against the arm with the fewest ranks.

    Returns:
        None where all arms have the same number of ranks.
    """
    arms = drawable(arms)
    ranks = np.array([arm.runs[0].world_size for arm in arms])
    if len({*ranks.tolist()}) < 2:
        return None
    launches = [[1 / seconds_per_unit(run) for run in arm.runs if run.measured.height] for arm in arms]
    rates = np.array([np.exp(np.mean(np.log(each))) for each in launches])
    fewest = int(ranks.argmin())
    per_rank = rates[fewest] / ranks[fewest]
    note = "Markers: geometric mean over launches; the launches faint. Dashed: every rank gives what the fewest give."
    figure, (left, right) = style.new_figure(
        "Throughput and efficiency over ranks", caption(arms, note), columns=2, width_in=10, height_in=4.6
    )
    end = HEADROOM * ranks.max()
    ideal: dict[str, Any] = {"color": style.FAINT_INK, "linestyle": "--", "linewidth": 1, "zorder": 0}
    left.plot([0, end], [0, per_rank * end], **ideal)
    right.axhline(100, **ideal)
    for index, (arm, each) in enumerate(zip(arms, launches, strict=True)):
        look: dict[str, Any] = {"color": style.color(index), "marker": style.marker(index), "linestyle": "none"}
        full = per_rank * ranks[index] / 100
        for axes, unit in ((left, 1.0), (right, full)):
            axes.plot([ranks[index]] * len(each), np.array(each) / unit, **look, markersize=4, alpha=0.3)
            axes.plot([ranks[index]], [rates[index] / unit], **look, markersize=8, label=arm.label)
    for axes, label in ((left, unit_of(arms[0].runs[0]).rate), (right, "efficiency of the ranks (%)")):
        style.label_axes(axes, "ranks", label)
        axes.set_xlim(0, end)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylim(top=HEADROOM * max(map(max, launches)))
    style.legend_of_figure(figure, left)
    return style.Drawing(
        figure,
        pl.DataFrame(
            {
                "arm": [arm.label for arm in arms],
                "ranks": ranks,
                "tokens_per_s": rates,
                "speedup": rates / rates[fewest],
                "efficiency": rates / (per_rank * ranks),
            }
        ),
    )

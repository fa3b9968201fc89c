"""Throughput over the ranks that train, and how much of each is left: one marker per arm, strategy by strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from dynbench.analysis.crowding import MARK, oversubscribed
from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.scaling import reference_of
from dynbench.analysis.speedup import seconds_per_unit, unit_of

HEADROOM = 1.1
"""The axes end this much above what they must show."""


def scaling(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Work per second on the left, efficiency on the right, each arm against its strategy's with the fewest workers.

    Returns:
        None where all arms have as many workers.
    """
    arms = drawable(arms)
    if len({arm.runs[0].workers for arm in arms}) < 2:
        return None
    arms = [arm for arm in arms if reference_of(arm, arms) is not None]
    ranks = np.array([arm.runs[0].workers for arm in arms])
    launches = [[1 / seconds_per_unit(run) for run in arm.runs if run.measured.height] for arm in arms]
    rates = np.array([np.exp(np.mean(np.log(each))) for each in launches])
    found = [reference_of(arm, arms) or (arm, "reference") for arm in arms]
    against = [arms.index(other) for other, _ in found]
    per_rank, kinds = rates[against] / ranks[against], [kind for _, kind in found]
    shared = [bool(oversubscribed(arm.runs[0].facts)) for arm in arms]
    notes = [
        "Markers: geometric mean over launches; the launches faint. Dashed: every rank gives what the fewest give."
    ]
    notes += [f"Hollow: {MARK}, more computing threads than cores."] if any(shared) else []
    figure, (left, right) = style.new_figure(
        "Throughput and efficiency over ranks", caption(arms, *notes), columns=2, width_in=10, height_in=4.6
    )
    end = HEADROOM * ranks.max()
    ideal: dict[str, Any] = {"color": style.FAINT_INK, "linestyle": "--", "linewidth": 1, "zorder": 0}
    for each_gives in dict.fromkeys(per_rank.tolist()):
        left.plot([0, end], [0, each_gives * end], **ideal)
    right.axhline(100, **ideal)
    for index, (arm, each) in enumerate(zip(arms, launches, strict=True)):
        look: dict[str, Any] = {"color": style.color(index), "marker": style.marker(index), "linestyle": "none"}
        hollow: dict[str, Any] = {"markerfacecolor": "none"} if shared[index] else {}
        full, first = per_rank[index] * ranks[index] / 100, against[index]
        for axes, unit, start in ((left, 1.0, rates[first]), (right, full, 100.0)):
            if first != index:
                style_of = "-" if kinds[index] == "strong" else ":"
                way = [start, rates[index] / unit]
                axes.plot([ranks[first], ranks[index]], way, style_of, color=style.FAINT_INK, linewidth=0.8, zorder=0)
            axes.plot([ranks[index]] * len(each), np.array(each) / unit, **look, markersize=4, alpha=0.3)
            axes.plot([ranks[index]], [rates[index] / unit], **look, **hollow, markersize=8, label=arm.label)
    for axes, label in ((left, unit_of(arms[0].runs[0]).rate), (right, "efficiency of the ranks (%)")):
        style.label_axes(axes, "ranks that train", label)
        axes.set_xlim(0, end)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylim(top=HEADROOM * max(map(max, launches)))
    style.legend_of_figure(figure, left)
    return style.Drawing(
        figure,
        pl.DataFrame(
            {
                "arm": [arm.label for arm in arms],
                "strategy": [arm.runs[0].facts.config.sync.name for arm in arms],
                "kind": kinds,
                "against": [arms[first].label for first in against],
                "ranks": ranks,
                "oversubscribed": shared,
                "tokens_per_s": rates,
                "speedup": rates / rates[against],
                "efficiency": rates / (per_rank * ranks),
            }
        ),
    )

"""The share of communication over the speed of the link and a rank's tokens, as a heat map with what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.colors import LinearSegmentedColormap

from dynbench.analysis.figures.charts import COLORS, INK, MARKERS, Drawing, Lines, Look, draw_panels, figure
from dynbench.analysis.figures.views import Arms, caption
from dynbench.analysis.link_map import HALF, link_map, link_point
from dynbench.config.schema import flatten

CELLS = 24
"""Of the map, each way."""
WIDER = 2.0
"""How far it goes beyond the least and the largest of what was measured, a factor."""
FROM_WHITE = LinearSegmentedColormap.from_list("communication", ["white", COLORS["communication"]])


@figure("train")
def communication_map(arms: Arms) -> Drawing | None:
    """The part of both passes that waits for communication, over the speed of the link and the tokens of a rank.

    Predicted shares, the line at which they pass one half, and points with their measured and predicted share.

    Returns:
        None where the arms have no such map.
    """
    points = {arm: link_point(arm.label, flatten(arm.runs[0].facts.config), arm.summaries) for arm in arms}
    known = [point for point in points.values() if point is not None]
    found = link_map(known)
    if found is None:
        return None
    measured = pl.DataFrame(
        {
            "arm": point.arm,
            "gbps": point.gbps,
            "tokens": point.tokens,
            "predicted": found.predicted(point),
            "measured": point.share,
            "name": f"{100 * point.share:.0f} % ({100 * found.predicted(point):.0f} %)",
        }
        for point in found.points
    )
    speeds, tokens = (_around(measured[name]) for name in ("gbps", "tokens"))
    grid = pl.DataFrame(
        {"gbps": speed, "tokens": each, "predicted": found.model.share(speed, each)}
        for each in tokens
        for speed in speeds
    )
    note = (
        "Colour: predicted from the arms without an emulated link; lines: a quarter, one half (thick), three quarters. "
        "Points: measured, in brackets what was predicted of them. Share: of forward and backward passes, in which "
        "ranks wait for others."
    )
    panel = Lines(
        rows=measured, x="gbps", y="tokens", names="name", log="xy",
        x_label="emulated link (Gb/s)", y_label="tokens of a rank in a step",
    )  # fmt: skip
    shown = {point.arm: Look(INK, MARKERS[0], "") for point in found.points}
    used = caption([arm for arm, point in points.items() if point in (*found.points, *found.bases)], note)
    table = pl.concat([measured.drop("name"), grid], how="diagonal")
    layout: dict[str, Any] = {"panel_in": 4.6, "legend": []}
    drawing = draw_panels("Communication's share of the passes", used, table, [panel], shown, **layout)
    (axes,), shares = drawing.figure.axes, 100 * grid["predicted"].to_numpy().reshape(CELLS, CELLS)
    drawn = axes.pcolormesh(speeds, tokens, shares, cmap=FROM_WHITE, vmin=0, vmax=100, shading="gouraud", zorder=0)
    drawing.figure.colorbar(drawn, ax=axes, label="waiting for communication, predicted (%)")
    axes.contour(speeds, tokens, shares, [25, 100 * HALF, 75], colors=INK, linewidths=[0.7, 2, 0.7], zorder=1)
    axes.grid(visible=False)
    axes.set(xlim=(speeds[0], speeds[-1]), ylim=(tokens[0], tokens[-1]))
    return drawing


def _around(values: pl.Series) -> list[float]:
    """Evenly, by ratio, from below the least to beyond the largest."""
    known = values.to_list()
    return [float(each) for each in np.geomspace(min(known) / WIDER, max(known) * WIDER, CELLS)]

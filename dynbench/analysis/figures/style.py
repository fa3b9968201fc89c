"""The look of every figure, and the only place that chooses a matplotlib backend.

Figures use the object interface (`Figure`, `Axes`), never pyplot, so nothing is global and nothing needs a display.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours (Color Universal Design, 2008) without yellow, which is lost on white; one per arm."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Told apart without colour, in the order of `PALETTE`."""

COLORS = {
    "plan": "#000000",
    "data": "#E69F00",
    "compute": "#0072B2",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "wait": "#F4C7AE",
    "communication": "#CC79A7",
    "under way": "#E8CBDB",
    "compress": "#8C510A",
    "decompress": "#D8B365",
    "optimizer": "#009E73",
    "parameters": "#332288",
    "gradients": "#88CCEE",
    "other": "#BBBBBB",
}
"""One per part of a step or of its memory, the same in every figure."""

RC = matplotlib.rc_params_from_file(Path(__file__).with_name("dynbench.mplstyle"), use_default_template=False)
"""Settings under which `draw_figures` draws and saves."""

INK, FAINT_INK = str(RC["text.color"]), str(RC["axes.edgecolor"])

TITLE_IN = 0.42
LEGEND_LINE_IN = 0.2
CAPTION_LINE_IN = 0.145
CAPTION_POINTS = 8
CAPTION_WIDTH = 0.96
"""Part of the width that a caption may take: letters are rounded to other widths at the resolution of the file."""


@dataclass(frozen=True)
class Drawing:
    """A finished figure and the numbers in it.

    Attributes:
        figure: ready to be saved.
        table: every plotted number, one row per point, written as CSV beside the PNG.
    """

    figure: Figure
    table: pl.DataFrame


def new_figure(
    title: str,
    caption: str,
    *,
    panels: int = 1,
    columns: int = 1,
    width_in: float = 9.0,
    panel_in: float = 3.4,
    legend: Sequence[Artist] = (),
    share_x: bool = False,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """An empty figure: a title, a legend and a wrapped caption that never overlap the panels.

    Args:
        title: one line that says what is shown.
        caption: how much was measured, what was left out, how lines were smoothed.
        panels: how many, row by row.
        columns: in which they stand.
        width_in: of the whole figure, inches.
        panel_in: height of a row of panels, inches; the figure is as high as its texts ask for beside them.
        legend: artists with labels, above all panels, so that it covers no data.
        share_x: one horizontal scale for all axes.
        share_y: one vertical scale for all axes.

    Returns:
        The figure and its panels.
    """
    figure = Figure(figsize=(width_in, 1), layout="constrained")
    lines = _wrapped(caption, CAPTION_WIDTH * width_in - 0.2, FigureCanvasAgg(figure))
    labels = [str(artist.get_label()) for artist in legend]
    legend_columns = _legend_columns(labels, width_in)
    rows = -(-panels // columns)
    top_in = TITLE_IN + (0.1 + LEGEND_LINE_IN * -(-len(labels) // legend_columns) if labels else 0)
    bottom_in = 0.12 + CAPTION_LINE_IN * len(lines)
    height_in = top_in + rows * panel_in + bottom_in
    figure.set_figheight(height_in)
    figure.text(
        0.1 / width_in, 1 - 0.1 / height_in, title, va="top", fontsize=12, fontweight="bold"
    )  # in inches from the corner
    figure.text(0.1 / width_in, 0.06 / height_in, "\n".join(lines), fontsize=CAPTION_POINTS, color=FAINT_INK)
    if labels:
        anchor = (0.02 / width_in, 1 - TITLE_IN / height_in)
        figure.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=anchor, ncols=legend_columns, handlelength=1.6,
            borderaxespad=0,
        )  # fmt: skip
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, bottom_in / height_in, 1, 1 - (top_in + bottom_in) / height_in))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y).ravel().tolist()
    for axes in grid[panels:]:
        axes.remove()
    return figure, grid[:panels]


def _wrapped(text: str, width_in: float, canvas: FigureCanvasAgg) -> list[str]:
    """Lines no wider than this in the caption's font."""
    font = FontProperties(size=CAPTION_POINTS)
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]  # matplotlib's is untyped
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        width, *_ = renderer.get_text_width_height_descent(longer, font, ismath=False)
        if lines and width <= width_in * canvas.figure.dpi:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _legend_columns(labels: Sequence[str], width_in: float) -> int:
    """The most columns whose longest labels fit beside each other (legends fill column by column)."""
    for columns in range(len(labels), 1, -1):
        longest = [max(map(len, part)) for part in np.array_split(np.array(labels), columns)]
        if sum(0.58 + 0.068 * characters for characters in longest) < width_in - 0.2:
            return columns
    return 1


def smooth(values: Sequence[float] | FloatArray, window: int) -> FloatArray:
    """Centred rolling mean over `window` points, shorter at the ends; same shape as the input."""
    series = pl.Series(np.asarray(values, dtype=np.float64))
    return series.rolling_mean(max(1, window), min_samples=1, center=True).to_numpy()


def smoothing_window(points: int) -> int:
    """Points that one smoothed value covers: about a twelfth of the series, odd, at least 5."""
    return max(5, points // 12) | 1


def digits(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def save(drawing: Drawing, stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.csv; returns both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, csv = stem.with_suffix(".png"), stem.with_suffix(".csv")
    drawing.figure.savefig(png)
    drawing.table.write_csv(csv)
    return [png, csv]

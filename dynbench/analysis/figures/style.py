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
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours (Color Universal Design, 2008) without yellow, which is lost on white; one per arm."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Told apart without colour, in the order of `PALETTE`."""

LINE_STYLES = ("-", "--", ":")

RC = matplotlib.rc_params_from_file(Path(__file__).with_name("dynbench.mplstyle"), use_default_template=False)
"""Settings under which `draw_figures` draws and saves."""

INK, FAINT_INK = str(RC["text.color"]), str(RC["axes.edgecolor"])

TITLE_IN = 0.42
LEGEND_LINE_IN = 0.2
CAPTION_LINE_IN = 0.145
CAPTION_LINES = 4
"""Lines of caption that a figure's height allows for; it grows by those beyond."""
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


def color(index: int) -> str:
    """Colour of the arm or series at this position."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """Marker of the arm or series at this position; another one where its colour comes again."""
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def dashes(index: int) -> str:
    """Line style of the arm or series at this position: solid, until the colours come again."""
    return LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)]


def new_figure(
    title: str,
    caption: str,
    *,
    rows: int = 1,
    columns: int = 1,
    width_in: float = 8.0,
    height_in: float = 4.5,
    share_x: bool = False,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with a title above and a wrapped caption below that never overlaps the axes.

    Args:
        title: one line that says what is shown.
        caption: runs, their number, what was left out, how lines were smoothed.
        rows: of the grid of axes.
        columns: of the grid of axes.
        width_in: of the whole figure, inches.
        height_in: of the whole figure, title and a caption of `CAPTION_LINES` included, inches.
        share_x: one horizontal scale for all axes.
        share_y: one vertical scale for all axes.

    Returns:
        The figure and its axes, row by row.
    """
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    lines = _wrapped(caption, CAPTION_WIDTH * width_in - 0.2, FigureCanvasAgg(figure))
    _grow(figure, CAPTION_LINE_IN * max(0, len(lines) - CAPTION_LINES))
    inches = figure.dpi_scale_trans
    from_top = figure.transFigure + ScaledTranslation(0.1, -0.1, inches)
    figure.text(0, 1, title, va="top", fontsize=12, fontweight="bold", transform=from_top)
    figure.text(0.1, 0.06, "\n".join(lines), va="bottom", fontsize=CAPTION_POINTS, color=FAINT_INK, transform=inches)
    _reserve(figure, top_in=TITLE_IN, bottom_in=0.12 + CAPTION_LINE_IN * len(lines))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [axes for row in grid for axes in row]


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


def _grow(figure: Figure, more_in: float) -> None:
    """Makes a figure taller; the bands taken from the axes keep their inches."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    before = figure.get_figheight()
    x, y, width, height = engine.get()["rect"]
    bottom_in, top_in = y * before, (1 - y - height) * before
    after = before + more_in
    figure.set_figheight(after)
    engine.set(rect=(x, bottom_in / after, width, 1 - (bottom_in + top_in) / after))


def _reserve(figure: Figure, *, top_in: float = 0.0, bottom_in: float = 0.0) -> None:
    """Takes bands at the top and the bottom, in inches, away from what the axes may use."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    x, y, width, height = engine.get()["rect"]
    bottom, top = bottom_in / figure.get_figheight(), top_in / figure.get_figheight()
    engine.set(rect=(x, y + bottom, width, height - bottom - top))


def label_axes(axes: Axes, x: str, y: str, *, title: str = "", from_zero: bool = True) -> None:
    """Axis labels (with units), an optional title, and a vertical axis that starts at zero unless told otherwise."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title)
    if from_zero:
        axes.set_ylim(bottom=0)


def legend_of_figure(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, taken from one of them, between the title and the panels: it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    columns = _legend_columns(labels, figure.get_figwidth())
    _grow(figure, LEGEND_LINE_IN * (-(-len(labels) // columns) - 1))
    anchor = (0.02 / figure.get_figwidth(), 1 - TITLE_IN / figure.get_figheight())
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=anchor, ncols=columns, handlelength=1.6, borderaxespad=0
    )
    _reserve(figure, top_in=0.1 + LEGEND_LINE_IN * -(-len(labels) // columns))


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

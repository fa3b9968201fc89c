"""How figures look, and the kinds of drawing that they are made of: lines in panels, stacked bars, marks with names.

Figures use the object interface (`Figure`, `Axes`), never pyplot, so nothing is global and nothing needs a display.
This is the only place that chooses a matplotlib backend.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import getdoc
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import matplotlib

matplotlib.use("Agg")

import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

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
    "gain": "#009E73",
    "loss": "#D55E00",
    "other": "#BBBBBB",
    "nothing": "none",
}
"""One per part of a step or of its memory, the same in every figure."""
RC = matplotlib.rc_params_from_file(Path(__file__).with_name("dynbench.mplstyle"), use_default_template=False)
"""Settings under which figures are drawn and saved."""
INK, FAINT_INK, GREY, WAIT_EDGE = str(RC["text.color"]), str(RC["axes.edgecolor"]), "#B5B5B5", "#D55E00"
TITLE_IN, LEGEND_LINE_IN, CAPTION_LINE_IN = 0.42, 0.2, 0.145
CAPTION_LETTERS = 14
"""Letters of a caption on an inch; wide ones fit, too."""
WAYS = ((1, 0), (0.7, 0.7), (0.7, -0.7), (-1, 0), (-0.7, 0.7), (-0.7, -0.7), (0, 1), (0, -1))
AROUND = tuple((far * right, far * up) for far in (6, 14, 24) for right, up in WAYS)
"""Where the name of a point may stand, points right of it and above it, the best place first."""
LABELLED = 0.05
"""Parts of at least this share of the longest bar carry their number."""

Kind = Literal["train", "solve", "bench", "cells"]
Dashes = Literal["-", "--", ":", ""]
DASHES: tuple[Dashes, ...] = ("-", "--", ":")
Needed = TypeVar("Needed")
Drawn = Callable[[Any], "Drawing | None"]


class Drawing(NamedTuple):
    """A finished figure and the numbers in it.

    Attributes:
        figure: ready to be saved.
        table: every plotted number, one row per point, written as CSV beside the PNG.
    """

    figure: Figure
    table: pl.DataFrame


FIGURES: dict[Kind, dict[str, Drawn]] = {"train": {}, "solve": {}, "bench": {}, "cells": {}}
"""Per command its figures, by the name of their files."""


def figure(
    kind: Kind, needs: Callable[[Any], Needed | None] = lambda source: source
) -> Callable[[Callable[[Needed], Drawing | None]], Drawn]:
    """Declares the function below as the figure of its name, None where there is nothing to be drawn.

    The first line of its docstring is its caption in English reports.

    Args:
        kind: the command whose runs it is drawn of.
        needs: from the source of such figures to what the function takes; None where the source lacks it.
    """

    def declared(draw: Callable[[Needed], Drawing | None]) -> Drawn:
        @wraps(draw)
        def drawn(source: Any) -> Drawing | None:
            found = needs(source)
            return None if found is None else draw(found)

        FIGURES[kind][draw.__name__] = drawn
        return drawn

    return declared


def caption_of(name: str) -> str:
    """What stands below a figure in English reports; empty for one that is not drawn any more."""
    found = (getdoc(figures[name]) for figures in FIGURES.values() if name in figures)
    return (next(found, None) or "").partition("\n")[0]


def new_figure(
    title: str,
    caption: str,
    *,
    panels: int = 1,
    columns: int = 1,
    width_in: float = 9.0,
    panel_in: float = 3.4,
    legend: Sequence[Artist] = (),
    **shared: Any,
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
        shared: `sharex` and `sharey`, one scale for all panels.

    Returns:
        The figure and its panels.
    """
    lines = textwrap.wrap(caption, int(CAPTION_LETTERS * width_in), break_on_hyphens=False)
    longest = max((len(str(each.get_label())) for each in legend), default=0)
    across, rows = max(1, int((width_in - 0.2) / (0.58 + 0.068 * longest))), -(-panels // columns)
    top_in = TITLE_IN + (0.1 + LEGEND_LINE_IN * -(-len(legend) // across) if legend else 0)
    bottom_in = 0.12 + CAPTION_LINE_IN * len(lines)
    height_in = top_in + rows * panel_in + bottom_in
    engine = ConstrainedLayoutEngine(rect=(0, bottom_in / height_in, 1, 1 - (top_in + bottom_in) / height_in))
    drawn = Figure((width_in, height_in), layout=engine)
    left, top = 0.1 / width_in, 1 - 0.1 / height_in  # in inches from the corner
    drawn.text(left, top, title, va="top", fontsize=12, fontweight="bold")
    drawn.text(left, 0.06 / height_in, "\n".join(lines), fontsize=8, color=FAINT_INK)
    if legend:
        anchor = (0.02 / width_in, 1 - TITLE_IN / height_in)
        look: dict[str, Any] = {"ncols": across, "handlelength": 1.6, "borderaxespad": 0}
        drawn.legend(handles=list(legend), loc="upper left", bbox_to_anchor=anchor, **look)
    grid = drawn.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for axes in grid[panels:]:
        axes.remove()
    return drawn, grid[:panels]


class Look(NamedTuple):
    """How a series is drawn."""

    color: str
    marker: str = "None"
    dashes: Dashes = "-"
    width: float = 1.8


def looks(names: Sequence[str], important: Collection[str] = ()) -> dict[str, Look]:
    """Colour and marker of every name; of more names than colours, only the important ones are not grey."""
    colored = [name for name in names if name in important] if len(names) > len(PALETTE) else names
    known = {name: Look(color, mark) for name, color, mark in zip(colored, PALETTE, MARKERS, strict=False)}
    return {name: known.get(name, Look(GREY, width=1.0)) for name in names}


def handles(shown: Mapping[str, Look]) -> list[Artist]:
    """Entries of a legend; those that are grey have one together, the last."""
    colored = {name: look for name, look in shown.items() if look.color != GREY}
    others = {} if len(colored) == len(shown) else {"others": Look(GREY, width=1.0)}
    return [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dashes, linewidth=look.width, label=name)
        for name, look in (colored | others).items()
    ]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What a panel of lines shows.

    Attributes:
        rows: the points; those without a number in `x` or `y` are left out.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        x_label: with its unit.
        y_label: with its unit.
        title: above the panel.
        raw: column drawn faintly behind the line.
        bars: columns of the ends of the interval around `y`.
        names: column of what is written beside the points, with room around them; null where nothing is.
        log: "x", "y" or "xy": the logarithmic axes.
        from_zero: the vertical axis begins at zero, where it is not logarithmic.
        top: where the vertical axis ends; by default all points are on it.
        ticks: of the horizontal axis: where, and what is written there.
        marked: points have markers, in place of a few along the line.
        stairs: a value holds until the next one.
    """

    rows: pl.DataFrame
    x: str
    y: str
    x_label: str
    y_label: str
    title: str = ""
    raw: str = ""
    bars: tuple[str, str] | None = None
    names: str = ""
    log: str = ""
    from_zero: bool = True
    top: float | None = None
    ticks: Mapping[float, str] | None = None
    marked: bool = True
    stairs: bool = False


def facets(rows: pl.DataFrame, by: str, **panel: Any) -> list[Lines]:
    """A panel for each value of a column, in order; `panel` as `Lines` takes it, without its rows and title."""
    return [Lines(rows=part, title=f"{key}", **panel) for (key,), part in rows.group_by(by, maintain_order=True)]


class Part(NamedTuple):
    """A part of every bar: its column of the rows, its name in the legend, and the name of its colour, or its own."""

    column: str
    title: str
    color: str
    hatch: str = ""

    def handle(self) -> Artist:
        """Its entry in a legend."""
        return Patch(label=self.title, **self.look())

    def look(self) -> dict[str, Any]:
        """As a bar is drawn."""
        edge = WAIT_EDGE if self.hatch else "none"
        return {"facecolor": COLORS.get(self.color, self.color), "hatch": self.hatch, "edgecolor": edge, "linewidth": 0}


PHASES = (
    Part("plan_ms", "plan", "plan"),
    Part("data_ms", "data", "data"),
    Part("compute_ms", "compute", "compute"),
    Part("wait_ms", "wait for the slowest rank", "wait", "////"),
    Part("exposed_comm_ms", "communication", "communication"),
    Part("optimizer_ms", "optimizer", "optimizer"),
    Part("other_ms", "other", "other"),
)
"""The parts of a step in the order in which they happen; `<column>_mean` in the step table."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """What a panel of horizontal bars from zero shows.

    Attributes:
        rows: one per bar, the first on top; its name is in the first column, and no number is no part.
        parts: of each bar, from left to right.
        x_label: with its unit.
        y_label: of the names.
        title: above the panel.
        ends: columns of the ends of a line over each bar.
        marks: column of a diamond on each bar.
        texts: column of what is written behind each bar.
        numbers: whether larger parts carry their number.
        x_end: where the axis ends.
    """

    rows: pl.DataFrame
    parts: Sequence[Part]
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    ends: tuple[str, str] | None = None
    marks: str = ""
    texts: str = ""
    numbers: bool = False
    x_end: float | None = None


def draw_panels(
    title: str,
    note: str,
    table: pl.DataFrame,
    panels: Sequence[Lines | Bars],
    shown: Mapping[str, Look] | None = None,
    *,
    series: str = "arm",
    columns: int = 0,
    legend: Sequence[Artist] | None = None,
    **layout: Any,
) -> Drawing:
    """A figure of panels, each axis labelled once where its neighbour has the same.

    Args:
        title: of the figure.
        note: its caption.
        table: what is drawn, for the CSV.
        panels: row by row.
        shown: of lines, name of a series to its look, in the order of the legend.
        series: column that says of which series a row is.
        columns: of panels; by default at most three.
        legend: in place of one entry per series or part of bars.
        layout: as `new_figure` takes it.
    """
    columns = columns or (2 if len(panels) == 4 else min(3, len(panels)))
    bars = [panel for panel in panels if isinstance(panel, Bars)]
    if legend is None:
        parts = dict.fromkeys(part for panel in bars for part in panel.parts if part.title)
        legend = [part.handle() for part in parts] if bars else handles(shown or {})
    layout = {"width_in": 7.5 + 1.3 * columns, "panels": len(panels), "columns": columns, **layout}
    if bars:
        layout = {"panel_in": 0.8 + 0.27 * bars[0].rows.height, "sharey": columns > 1, **layout}
    drawn, grid = new_figure(title, note, legend=legend, **layout)
    for place, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        left, below = panels[place - 1 : place] if place % columns else [], panels[place + columns :][:1]
        x_label = "" if below and below[0].x_label == panel.x_label else panel.x_label
        y_label = "" if left and left[0].y_label == panel.y_label else panel.y_label
        axes.set(title=panel.title, xlabel=x_label, ylabel=y_label)
        if isinstance(panel, Bars):
            _draw_bars(axes, panel)
        else:
            _draw_lines(axes, panel, shown or {}, series)
    lines = [(axes, panel) for axes, panel in zip(grid, panels, strict=True) if isinstance(panel, Lines)]
    for axes, panel in lines:  # which may share a scale
        _scale(axes, panel)
    for axes, panel in lines:
        if panel.names:
            _name_points(axes, panel, shown or {}, series)
    return Drawing(drawn, table)


def _draw_lines(axes: Axes, panel: Lines, shown: Mapping[str, Look], series: str) -> None:
    for place, (name, look) in enumerate(shown.items()):
        rows = panel.rows.filter(pl.col(series) == name).drop_nulls([panel.x, panel.y])
        if rows.is_empty():
            continue
        x = rows[panel.x]
        if panel.raw:
            axes.plot(x, rows[panel.raw], color=look.color, linewidth=0.8, alpha=0.35, zorder=1)
        if panel.bars:
            low, high = panel.bars
            axes.vlines(x, rows[low], rows[high], color=look.color, linewidth=1)
        axes.plot(
            x, rows[panel.y], color=look.color, linestyle=look.dashes, linewidth=look.width,
            marker="None" if panel.stairs else "." if look.marker == "None" and not look.dashes else look.marker,
            markersize=4.5 if look.dashes else 6.5, markevery=1 if panel.marked else (0.12 * place / len(shown), 0.12),
            drawstyle="steps-post" if panel.stairs else "default", zorder=2 if look.color == GREY else 3,
        )  # fmt: skip


def _scale(axes: Axes, panel: Lines) -> None:
    if panel.names:
        axes.margins(0.12)
    for name in panel.log:  # numbers as they are, also between powers of ten where there are few of those
        axes.set(**{f"{name}scale": "log"})
        axis = axes.xaxis if name == "x" else axes.yaxis
        least, most = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 2000 * least else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    if panel.from_zero and "y" not in panel.log:
        axes.set_ylim(bottom=0)
    axes.set_ylim(top=panel.top)
    if panel.ticks:
        turned = 90 if sum(map(len, panel.ticks.values())) > 24 else 0
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()), rotation=turned)
    elif panel.rows[panel.x].dtype.is_integer():
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _name_points(axes: Axes, panel: Lines, shown: Mapping[str, Look], series: str) -> None:
    """Names beside a panel's points, on no point, line or other name; one without a free place lies over them."""
    rows = panel.rows.drop_nulls([panel.x, panel.y, panel.names])
    drawn, places = axes.figure.canvas.figure, rows.select(panel.x, panel.y)
    drawn.draw_without_rendering()
    taken = [Bbox([place - 11, place + 11]) for place in axes.transData.transform(places.to_numpy())]
    curves = [line.get_xydata() for line in axes.lines if line.get_linestyle() != "None"]
    curves += [ends for bars in axes.collections if isinstance(bars, LineCollection) for ends in bars.get_segments()]
    for begin, end in (pair for curve in curves for pair in pairwise(axes.transData.transform(curve))):
        taken += [Bbox([place - 1, place + 1]) for place in np.linspace(begin, end, 40)]
    for place, words, name in zip(places.iter_rows(), rows[panel.names], rows[series], strict=True):
        color = FAINT_INK if shown[name].color == GREY else shown[name].color
        text = axes.annotate(words, place, AROUND[0], textcoords="offset points", fontsize=7.5, color=color)
        for right, up in AROUND:
            aligned = ("center", "left", "right")[int(np.sign(right))], ("center", "bottom", "top")[int(np.sign(up))]
            text.set(position=(right, up), horizontalalignment=aligned[0], verticalalignment=aligned[1])
            box = text.get_window_extent()
            if axes.bbox.x0 + 4 < box.x0 and box.x1 < axes.bbox.x1 and not any(map(box.overlaps, taken)):
                break
        taken.append(box)


def _draw_bars(axes: Axes, bars: Bars) -> None:
    rows = bars.rows.with_columns(pl.col(pl.Float64).fill_nan(None))
    places, left = np.arange(rows.height), np.zeros(rows.height)
    for part in (part for part in bars.parts if part.column in rows.columns):
        width = rows[part.column].fill_null(0).to_numpy()
        drawn = axes.barh(places, width, 0.68, left=left, **part.look())
        left = left + width
        if bars.numbers and bars.x_end:
            numbers = [digits(each) if each > LABELLED * bars.x_end else "" for each in width]
            box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
            axes.bar_label(drawn, numbers, label_type="center", fontsize=8.5, bbox=box)
    for place, end, text in zip(places, left, rows[bars.texts] if bars.texts else (), strict=False):
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    if bars.ends:
        low, high = bars.ends
        axes.hlines(places, rows[low].to_numpy(), rows[high].to_numpy(), color=INK, linewidth=1.2)
    if bars.marks:
        axes.plot(rows[bars.marks].to_numpy(), places, "D", color=INK, markersize=4.5)
    axes.set_yticks(places, rows.to_series(0))
    axes.set_ylim(rows.height - 0.45, -0.55)
    if bars.x_end:
        axes.set_xlim(0, bars.x_end)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def digits(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"

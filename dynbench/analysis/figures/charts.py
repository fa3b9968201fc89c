"""The kinds of drawing that figures are made of: lines in panels, stacked bars, and names beside what is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from dynbench.analysis.figures.style import COLORS, FAINT_INK, INK, MARKERS, PALETTE, Drawing, new_figure

GREY = "#B5B5B5"
WAIT_EDGE = "#D55E00"
Dashes = Literal["-", "--", ":", ""]
DASHES: tuple[Dashes, ...] = ("-", "--", ":")
NAME_POINTS = 7.5
AROUND = ((1, 0), (0.7, 0.7), (0.7, -0.7), (-1, 0), (-0.7, 0.7), (-0.7, -0.7), (0, 1), (0, -1))
"""Where the name of a mark may stand, right of it and above it, the best place first."""

Named = tuple[float, float, str, str]
"""A place in data units, the name of what is there, and the colour of that."""


@dataclass(frozen=True, slots=True)
class Look:
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
class Panel:
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
        log: "x", "y" or "xy": the logarithmic axes.
        from_zero: the vertical axis begins at zero, where it is not logarithmic.
        top: where the vertical axis ends; by default all points are on it.
        ticks: of the horizontal axis: where, and what is written there; whole numbers where it is empty.
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
    log: str = ""
    from_zero: bool = True
    top: float | None = None
    ticks: Mapping[float, str] | None = None
    marked: bool = True
    stairs: bool = False


def facets(rows: pl.DataFrame, by: str, **panel: Any) -> list[Panel]:
    """A panel for each value of a column, in order; `panel` as `Panel` takes it, without its rows and title."""
    return [Panel(rows=part, title=f"{key}", **panel) for (key,), part in rows.group_by(by, maintain_order=True)]


def line_figure(
    title: str,
    note: str,
    table: pl.DataFrame,
    panels: Sequence[Panel],
    shown: Mapping[str, Look],
    *,
    series: str = "arm",
    columns: int = 0,
    panel_in: float = 3.4,
    legend: Sequence[Artist] | None = None,
    share_y: bool = False,
) -> Drawing:
    """Panels of lines, a line for every name in `shown`; many are named at their ends rather than in a legend.

    Args:
        title: of the figure.
        note: its caption.
        table: what is drawn, for the CSV.
        panels: row by row.
        shown: name of a series to its look, in the order of the legend.
        series: column that says of which series a row is.
        columns: of panels; by default at most three.
        panel_in: height of a panel, inches.
        legend: in place of one entry per series.
        share_y: one vertical scale for all panels.
    """
    columns = columns or (2 if len(panels) == 4 else min(3, len(panels)))
    at_ends = legend is None and len(shown) > len(PALETTE)
    if legend is None:
        legend = [] if at_ends else handles(shown)
    figure, grid = new_figure(
        title, note, panels=len(panels), columns=columns, width_in=7.5 + 1.3 * columns, panel_in=panel_in,
        legend=legend, share_y=share_y,
    )  # fmt: skip
    ends = [_draw_lines(axes, panel, shown, series) for axes, panel in zip(grid, panels, strict=True)]
    for place, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        left, below = panels[place - 1 : place] if place % columns else [], panels[place + columns :][:1]
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        if below and below[0].x_label == panel.x_label:
            axes.set_xlabel("")
        if left and left[0].y_label == panel.y_label:
            axes.set_ylabel("")
        _scale(axes, panel)
    for axes, named in zip(grid, ends, strict=True):
        if at_ends and named:
            name_ends(axes, named)
    return Drawing(figure, table)


def _draw_lines(axes: Axes, panel: Panel, shown: Mapping[str, Look], series: str) -> list[Named]:
    """Returns the end of every line."""
    ends = []
    for place, (name, look) in enumerate(shown.items()):
        rows = panel.rows.filter(pl.col(series) == name).drop_nulls([panel.x, panel.y])
        if rows.is_empty():
            continue
        x, y = rows[panel.x], rows[panel.y]
        every = (len(x) // 16 * (2 * place + 1) // (2 * len(shown)), max(1, len(x) // 8))
        if panel.raw:
            axes.plot(x, rows[panel.raw], color=look.color, linewidth=0.8, alpha=0.35, zorder=1)
        if panel.bars:
            low, high = panel.bars
            axes.vlines(x, rows[low], rows[high], color=look.color, linewidth=1)
        axes.plot(
            x, y, color=look.color, linestyle=look.dashes, linewidth=look.width, markersize=4.5,
            marker="None" if panel.stairs else look.marker, markevery=1 if panel.marked else every,
            drawstyle="steps-post" if panel.stairs else "default", zorder=2 if look.color == GREY else 3,
        )  # fmt: skip
        ends.append((float(x[-1]), float(y[-1]), name, look.color))
    return ends


def _scale(axes: Axes, panel: Panel) -> None:
    for name in panel.log:
        axes.set(**{f"{name}scale": "log"})
        plain_ticks(axes.xaxis if name == "x" else axes.yaxis)
    if panel.from_zero and "y" not in panel.log:
        axes.set_ylim(bottom=0)
    axes.set_ylim(top=panel.top)
    if panel.ticks:
        turned = 90 if sum(map(len, panel.ticks.values())) > 24 else 0
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()), rotation=turned)
    elif panel.ticks is not None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_ticks(*axes: Axis) -> None:
    """Numbers of logarithmic axes as they are, also between powers of ten where there are few of those."""
    for axis in axes:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2000 * low else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def name_ends(axes: Axes, ends: Sequence[Named]) -> None:
    """Names of lines right of the panel, each led to from its line's end, none on another."""
    figure = axes.figure.canvas.figure
    figure.draw_without_rendering()  # which lays the panels out
    places = axes.transData.transform([(x, y) for x, y, *_ in ends])
    wanted = np.clip(axes.transAxes.inverted().transform(places)[:, 1], 0, 1)
    gap = 1.25 * NAME_POINTS / 72 * figure.dpi / axes.bbox.height
    order, steps = np.argsort(wanted), gap * np.arange(len(ends))
    at = np.maximum.accumulate(wanted[order] - steps)  # as low as the names below leave room for
    at = np.minimum(at, max(0.0, 1 - steps[-1])) + steps
    lead = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
    for height, (x, y, name, color) in zip(at, (ends[place] for place in order), strict=True):
        axes.annotate(
            name, (x, y), (1.03, height), textcoords="axes fraction", va="center", fontsize=NAME_POINTS,
            color=FAINT_INK if color == GREY else color, arrowprops=lead, annotation_clip=False,
        )  # fmt: skip


def draw_marks(axes: Axes, rows: pl.DataFrame, x: str, y: str, shown: Mapping[str, Look], name: str = "arm") -> None:
    """A mark per row, looking as its arm does, and beside it its name, which covers no mark and no other name.

    Names come last, on axes that are scaled already; one that has no free place lies over what is there.
    """
    rows = rows.drop_nulls([x, y])
    figure, looking = axes.get_figure(root=True), [shown[arm] for arm in rows["arm"]]
    assert figure is not None
    for right, up, look in zip(rows[x], rows[y], looking, strict=True):
        axes.scatter(right, up, 40, look.color, marker="." if look.marker == "None" else look.marker, zorder=3)
    figure.draw_without_rendering()
    taken = [Bbox([place - 6, place + 6]) for place in axes.transData.transform(rows.select(x, y).to_numpy())]
    for place, words, look in zip(rows.select(x, y).iter_rows(), rows[name], looking, strict=True):
        for far, (right, up) in ((far, way) for far in (6, 14, 24) for way in AROUND):
            text = axes.annotate(
                words, place, (far * right, far * up), textcoords="offset points", fontsize=NAME_POINTS,
                ha=("center", "left", "right")[int(np.sign(right))], va=("center", "bottom", "top")[int(np.sign(up))],
                color=FAINT_INK if look.color == GREY else look.color,
            )  # fmt: skip
            box = text.get_window_extent()
            if axes.bbox.x0 < box.x0 and box.x1 < figure.bbox.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            text.remove()
        else:
            axes.add_artist(text)


def wide(
    rows: pl.DataFrame, index: str, names: Sequence[str], of: str, value: str, columns: Sequence[str]
) -> pl.DataFrame:
    """A row for each of the names in `index`, a column for each of those in `of`; null where there is none."""
    found = rows.pivot(of, index=index, values=value, aggregate_function="first")
    missing = (pl.lit(None, pl.Float64).alias(name) for name in columns if name not in found.columns)
    table = pl.DataFrame({index: names}, {index: pl.String}).join(found, on=index, how="left", maintain_order="left")
    return table.with_columns(*missing).select(index, *columns)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of every bar: its column of the rows, its name in the legend, and its look."""

    column: str
    title: str
    color: str
    hatch: str = ""

    def handle(self) -> Artist:
        """Its entry in a legend."""
        return Patch(facecolor=self.color, hatch=self.hatch, edgecolor=WAIT_EDGE, linewidth=0, label=self.title)


PHASES = (
    Part("plan_ms", "plan", COLORS["plan"]),
    Part("data_ms", "data", COLORS["data"]),
    Part("compute_ms", "compute", COLORS["compute"]),
    Part("wait_ms", "wait for the slowest rank", COLORS["wait"], "////"),
    Part("exposed_comm_ms", "communication", COLORS["communication"]),
    Part("optimizer_ms", "optimizer", COLORS["optimizer"]),
    Part("other_ms", "other", COLORS["other"]),
)
"""The parts of a step in the order in which they happen; `<column>_mean` in the step table."""


@dataclass(frozen=True)
class Bars:
    """What a panel of bars shows.

    Attributes:
        rows: one per bar, the first on top.
        parts: of each bar, from left to right.
        x_label: with its unit.
        title: above the panel.
        ends: columns of the ends of a line over each bar.
        marks: column of a diamond on each bar.
    """

    rows: pl.DataFrame
    parts: Sequence[Part]
    x_label: str = ""
    title: str = ""
    ends: tuple[str, str] | None = None
    marks: str = ""


def bar_figure(
    title: str, note: str, table: pl.DataFrame, names: Sequence[str], bars: Sequence[Bars], *, columns: int = 2
) -> Drawing:
    """Panels of horizontal bars with the same names; `table` is what is drawn, for the CSV."""
    columns = min(columns, len(bars))
    parts = dict.fromkeys(part for each in bars for part in each.parts if part.title)
    figure, grid = new_figure(
        title, note, panels=len(bars), columns=columns, width_in=7.5 + 1.3 * columns, share_y=True,
        panel_in=0.8 + 0.27 * len(names), legend=[part.handle() for part in parts],
    )  # fmt: skip
    for axes, each in zip(grid, bars, strict=True):
        draw_bars(axes, names, each)
    return Drawing(figure, table)


def draw_bars(axes: Axes, names: Sequence[str], bars: Bars, height: float = 0.62) -> None:
    """Horizontal bars from zero, `height` of the distance between two of them thick."""
    rows = bars.rows.with_columns(pl.col(pl.Float64).fill_nan(None))
    places, left = np.arange(rows.height), np.zeros(rows.height)
    for part in bars.parts:
        width = rows[part.column].fill_null(0).to_numpy()
        look: dict[str, Any] = {"color": part.color, "hatch": part.hatch, "linewidth": 0}
        axes.barh(places, width, height, left=left, edgecolor=WAIT_EDGE if part.hatch else "none", **look)
        left = left + width
    if bars.ends:
        low, high = bars.ends
        axes.hlines(places, rows[low].to_numpy(), rows[high].to_numpy(), color=INK, linewidth=1.2)
    if bars.marks:
        axes.plot(rows[bars.marks].to_numpy(), places, "D", color=INK, markersize=4.5)
    axes.set_yticks(places, names)
    axes.set(xlabel=bars.x_label, title=bars.title, ylim=(rows.height - 0.45, -0.55))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")

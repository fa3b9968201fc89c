"""How far greedy and naive counts are from the exact ones, as distributions over steps."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import read_rows, traces
from dynbench.runs.run import Run

GAPS = "greedy_gaps.csv"
COLUMNS = ("trace", "world_size", "step", "heuristic", "max_cost_gap", "variance_gap")


def draw(source: Run) -> style.Drawing | None:
    """Above: excess of the maximum, per heuristic; below: greedy's excess of the variance."""
    if not (source.path / GAPS).is_file():
        return None
    table = read_rows(source, GAPS, COLUMNS)
    names = traces(table)
    known = table["world_size"].unique().sort().to_list()
    sizes = list(dict.fromkeys((known[0], known[-1])))
    table = table.filter(pl.col("world_size").is_in(sizes))
    heuristics = table["heuristic"].unique(maintain_order=True).to_list()
    figure, panels = style.new_figure(
        "prefix: gap of heuristic counts to the exact ones",
        f"{source.label}: share of steps whose gap is at most x, from {table['step'].n_unique()} steps each. Maximum: "
        "relative to the exact one; greedy's gap is provably zero. Variance: in units of the squared maximum, where "
        "the exact variance is known. Smallest and largest world size.",
        rows=2,
        columns=len(names),
        width_in=2.0 + 2.9 * len(names),
        height_in=6.4,
    )
    above, below = panels[: len(names)], panels[len(names) :]
    for upper, lower, name in zip(above, below, names, strict=True):
        here = table.filter(trace=name)
        for index, heuristic in enumerate(heuristics):
            for order, size in enumerate(sizes):
                part = here.filter(heuristic=heuristic, world_size=size)
                label = f"{heuristic}, {size} ranks"
                _steps(upper, part["max_cost_gap"], index, order, label)
                if heuristic == "greedy":
                    _steps(lower, part["variance_gap"].drop_nulls(), index, order, label)
        left = upper is above[0]
        style.label_axes(upper, "gap of the maximum", "share of steps" if left else "", title=name)
        style.label_axes(lower, "greedy's gap of the variance", "share of steps" if left else "")
    style.legend_of_figure(figure, above[0])
    return style.Drawing(figure, table)


def _steps(axes: Axes, gaps: pl.Series, index: int, order: int, label: str) -> None:
    """One cumulative distribution."""
    if not len(gaps):
        return
    values = np.sort(gaps.to_numpy())
    share = np.arange(1, len(values) + 1) / len(values)
    axes.step(
        np.concatenate(([values[0]], values)),
        np.concatenate(([0.0], share)),
        where="post",
        color=style.color(index),
        linestyle=style.LINE_STYLES[order % len(style.LINE_STYLES)],
        label=label,
    )

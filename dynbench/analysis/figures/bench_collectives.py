"""Collectives by size: time with its spread over iterations, and bandwidth, a panel for each operation."""

from __future__ import annotations

import math

import polars as pl
from matplotlib.ticker import LogLocator, StrMethodFormatter

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import draw_line, measured_rows
from dynbench.runs.run import Run

MEASURES = ("operation", "size", "p20", "p50", "p80", "busbw", "processes", "backend", "type", "n")
SERIES = ("backend", "type", "processes")
COLUMNS = 3


def bench_collectives(source: Run) -> style.Drawing | None:
    """Median time over the size."""
    spread = "An iteration lasts the maximum over ranks. Bars span the 20th to 80th percentile"
    return _drawing(source, "Time of collectives by size", "p50", "time, median (ms)", spread)


def bench_bandwidth(source: Run) -> style.Drawing | None:
    """Bus bandwidth over the size."""
    meaning = "Bus bandwidth: size over mean time, times what a rank sends at least as a part of the size"
    return _drawing(source, "Bus bandwidth of collectives by size", "busbw", "bus bandwidth (GB/s)", meaning)


def _drawing(source: Run, title: str, column: str, label: str, meaning: str) -> style.Drawing | None:
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.with_columns(megabytes=pl.col("size") / 1e6)
    operations = table["operation"].unique(maintain_order=True).to_list()
    columns = min(COLUMNS, len(operations))
    rows = math.ceil(len(operations) / columns)
    figure, panels = style.new_figure(
        title,
        f"{source.label}: n = {_iterations(table)} iterations per size, warm-up left out. {meaning}.",
        rows=rows,
        columns=columns,
        width_in=max(6.0, 3.7 * columns),
        height_in=1.5 + 2.6 * rows,
    )
    series = table.select(SERIES).unique(maintain_order=True).rows()
    ticks = {f"{float(f'{size:.3g}'):g}": size for size in sorted(table["megabytes"])}
    for axes, operation in zip(panels, operations, strict=False):
        drawn = table.filter(pl.col("operation") == operation)
        for number, (backend, dtype, processes) in enumerate(series):
            points = drawn.filter(
                (pl.col("backend") == backend) & (pl.col("type") == dtype) & (pl.col("processes") == processes)
            ).sort("size")
            draw_line(axes, points, "megabytes", column, number, f"{backend}, {dtype}, {processes} processes")
        if column == "p50":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_xscale("log")
        axes.set_xticks(list(ticks.values()), list(ticks))
        axes.minorticks_off()
        style.label_axes(axes, "size (MB, log scale)", label, title=operation, from_zero=column != "p50")
    for axes in panels[len(operations) :]:
        axes.remove()
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)


def _iterations(table: pl.DataFrame) -> str:
    fewest, most = table.select(fewest=pl.col("n").min(), most=pl.col("n").max()).row(0)
    return f"{most}" if fewest == most else f"{fewest} to {most}"

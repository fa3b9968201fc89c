"""All-reduce by size: time with its spread over iterations, and bandwidth."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import measured_rows
from dynbench.runs.run import Run

MEASURES = ("size", "p20", "p50", "p80", "busbw", "processes", "backend", "type", "n")


def bench_collectives(source: Run) -> style.Drawing | None:
    """Median time on the left, bus bandwidth on the right, over the size."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.with_columns(megabytes=pl.col("size") / 1e6)
    first = table.row(0, named=True)
    figure, (times, bandwidths) = style.new_figure(
        "All-reduce by size",
        f"{source.label}: {first['processes']} processes, {first['backend']}, {first['type']}; n = {first['n']} "
        "iterations per size, each the maximum over ranks, warm-up left out. Bars span the 20th to 80th percentile.",
        columns=2,
        width_in=10,
        height_in=4.2,
    )
    sizes, p50 = table["megabytes"], table["p50"]
    times.errorbar(sizes, p50, yerr=[p50 - table["p20"], table["p80"] - p50], fmt="o-", color=style.color(0), capsize=3)
    bandwidths.plot(sizes, table["busbw"], "o-", color=style.color(0))
    for axes, shown in ((times, "time, median (ms)"), (bandwidths, "bus bandwidth (GB/s)")):
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
        axes.minorticks_off()
        axes.margins(y=0.1)
        style.label_axes(axes, "size (MB, log scale)", shown)
    return style.Drawing(figure, table)

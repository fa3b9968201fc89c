"""Attention over a packed row, by each way to keep its samples apart: time over tokens per row."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import measured_rows
from dynbench.runs.run import Run

MEASURES = ("way", "tokens", "samples", "width", "heads", "device", "p20", "p50", "p80", "n")
SHOWN = {
    "by_length": "a call for each length",
    "repadded": "re-padded to the longest",
    "block_mask": "a mask of the whole row",
    "linear": "linear parts of the layer",
}


def bench_packed_attention(source: Run) -> style.Drawing | None:
    """Median time of one layer, forward and backward, over the tokens of the row."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.sort("way", "tokens")
    first = table.row(0, named=True)
    figure, (axes,) = style.new_figure(
        "Attention over a packed row",
        f"{source.label}: one layer of width {first['width']} and {first['heads']} heads, forward and backward, on "
        f"{first['device']}; n = {first['n']} iterations per point, warm-up left out. Bars span the 20th to 80th "
        "percentile.",
    )
    for number, (way, shown) in enumerate(SHOWN.items()):
        rows = table.filter(pl.col("way") == way)
        if rows.is_empty():
            continue
        p50 = rows["p50"]
        bars = [p50 - rows["p20"], rows["p80"] - p50]
        axes.errorbar(rows["tokens"], p50, yerr=bars, fmt="o-", color=style.color(number), capsize=3, label=shown)
    axes.set_xscale("log", base=2)
    sizes = sorted(set(table["tokens"]))
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    style.label_axes(axes, "tokens per row (log scale)", "time, median (ms)")
    axes.legend()
    return style.Drawing(figure, table)

"""Attention by length, a panel for each pass and width: time, and the memory that the passes take."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.ticker import LogLocator, StrMethodFormatter

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import draw_line, measured_rows
from dynbench.runs.run import Run

MEASURES = (
    *("way", "pass", "length", "channels", "dtype", "batch", "causal", "device"),
    *("p20", "p50", "p80", "n", "saved_mb", "peak_mb"),
)
SERIES = ("way", "dtype")


def bench_attention(source: Run) -> style.Drawing | None:
    """Median time over the length."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    spread = f"n = {table.row(0, named=True)['n']} iterations per point, warm-up left out. Bars span the 20th to 80th "
    passes = table["pass"].unique(maintain_order=True).to_list()
    panels = {each: (each, "p50", table.filter(pl.col("pass") == each)) for each in passes}
    caption = f"{_about(source, table)} {spread}percentile."
    return _drawing("Attention by length: time", caption, "time, median (ms, log scale)", list(panels.values()), table)


def bench_attention_memory(source: Run) -> style.Drawing | None:
    """What is held between the passes, and the most at once, over the length."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.unique(("length", "channels", *SERIES), keep="first", maintain_order=True)
    panels = [("before backward", "saved_mb", table), ("peak", "peak_mb", table)]
    caption = f"{_about(source, table)} Beside queries, keys and values. Of lines that coincide the last is seen."
    return _drawing("Attention by length: memory", caption, "memory (MB, log scale)", panels, table)


def _about(source: Run, table: pl.DataFrame) -> str:
    first = table.row(0, named=True)
    mask = "causal" if first["causal"] else "no mask"
    return (
        f"{source.label}: batch {first['batch']}, no heads, {mask}, on {first['device']}. What did not run is absent."
    )


def _drawing(
    title: str, caption: str, label: str, rows: Sequence[tuple[str, str, pl.DataFrame]], table: pl.DataFrame
) -> style.Drawing:
    """A row of panels for each name, column and table in `rows`; a panel for each width."""
    widths = sorted(set(table["channels"]))
    figure, panels = style.new_figure(
        title,
        caption,
        rows=len(rows),
        columns=len(widths),
        width_in=max(6.0, 3.4 * len(widths)),
        height_in=1.6 + 2.4 * len(rows),
        share_x=True,
    )
    series = table.select(SERIES).unique(maintain_order=True).rows()
    shown = [(name, column, part, width) for name, column, part in rows for width in widths]
    for axes, (name, column, part, width) in zip(panels, shown, strict=True):
        for number, (way, dtype) in enumerate(series):
            chosen = (pl.col("way") == way) & (pl.col("dtype") == dtype) & (pl.col("channels") == width)
            draw_line(axes, part.filter(chosen).sort("length"), "length", column, number, f"{way}, {dtype}")
        lengths = sorted(set(part["length"]))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=90 if len(lengths) > 5 else 0)
        axes.minorticks_off()
        style.label_axes(axes, "length (tokens, log scale)", label, title=f"{name}, d = {width}", from_zero=False)
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)

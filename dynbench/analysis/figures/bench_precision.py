"""What half precision does: how far sums are off, and what a step takes."""

from __future__ import annotations

import polars as pl
from matplotlib.ticker import StrMethodFormatter

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import measured_rows
from dynbench.runs.run import Run

MEASURES = ("case", "study", "shape", "dtype", "device", "mean", "sd", "reference_error", "n")
MODES = {"float32": "full, float32", "float16": "mixed, float16", "bfloat16": "mixed, bfloat16"}


def bench_precision(source: Run) -> style.Drawing | None:
    """Error of each sum against float64, and time of forward and backward in full and in mixed precision."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.filter(pl.col("study").is_in(["sum", "time"]))
    table = table.with_columns(pl.col("case").str.strip_prefix("sum: "))
    sums, times = (table.filter(pl.col("study") == study) for study in ("sum", "time"))
    if sums.is_empty() or times.is_empty():
        return None
    figure, (left, right) = style.new_figure(
        "Half precision: sums and steps",
        f"{source.label}: on {times['device'][0]}. Sums of {sums['shape'][0].strip('[]')} terms of 0.01, each off by "
        "the number beside its mark; one that is exact has no mark. Forward and backward of the toy: mean of "
        f"n = {times['n'][0]} iterations, warm-up left out; lines are the standard deviation.",
        columns=2,
        width_in=11,
        height_in=3.6,
    )
    for case, error in sums.select("case", "reference_error").iter_rows():
        left.plot(error or float("nan"), case, "o", color=style.color(0), markersize=8)
        where, of = ((error, case), "data") if error else ((0, case), ("axes fraction", "data"))
        left.annotate(f"{error:.2g}", where, (8, -3), xycoords=of, textcoords="offset points")
    left.set_xscale("log")
    left.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.margins(x=0.3, y=0.2)
    left.invert_yaxis()
    style.label_axes(left, "error of the sum (log scale)", "", title="sums, against float64", from_zero=False)
    names = [MODES[dtype] for dtype in times["dtype"]]
    right.barh(
        names,
        times["mean"],
        xerr=times["sd"].cast(pl.Float64).fill_null(0),
        capsize=3,
        color=style.color(0),
        height=0.6,
    )
    right.invert_yaxis()
    style.label_axes(right, "time, mean (ms)", "", title="forward and backward", from_zero=False)
    return style.Drawing(figure, table.drop("shape"))

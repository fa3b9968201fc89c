"""What the figures of benchmarks share: the rows of a run that were measured, and a line through them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.runs.run import Run


def measured_rows(source: Run, columns: Sequence[str]) -> pl.DataFrame | None:
    """These columns of the rows that were measured; None where there are none, or another benchmark wrote them."""
    file = source.path / "rows.csv"
    if not file.is_file():
        return None
    table = pl.read_csv(file, infer_schema_length=None)
    if not set(columns) <= set(table.columns):
        return None
    table = table.filter(pl.col("status") == "ok").select(columns)
    return None if table.is_empty() else table


def draw_line(axes: Axes, points: pl.DataFrame, x: str, y: str, number: int, label: str) -> None:
    """A series over a column; of medians with their 20 % and 80 % quantiles."""
    values = points[y]
    bars = [values - points["p20"], points["p80"] - values] if y == "p50" else None
    axes.errorbar(
        points[x], values, yerr=bars, capsize=3, label=label,
        color=style.color(number), marker=style.marker(number), linestyle=style.dashes(number),
    )  # fmt: skip

"""What the figures of benchmarks read: the rows of a run that were measured."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from dynbench.runs.run import Run


def measured_rows(source: Run, columns: Sequence[str]) -> pl.DataFrame | None:
    """These columns of the rows that were measured; None where there are none, or another benchmark wrote them."""
    file = source.path / "rows.csv"
    if not file.is_file():
        return None
    table = pl.read_csv(file)
    if not set(columns) <= set(table.columns):
        return None
    table = table.filter(pl.col("status") == "ok").select(columns)
    return None if table.is_empty() else table

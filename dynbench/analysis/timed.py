"""What strategies and compressors time in a step, of the ranks that train and of those that serve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import polars as pl

from dynbench.analysis.merge import PARQUET, MergedRun
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.runs.columns import COMM_COLUMNS, read_columns
from dynbench.table_text import MARKDOWN_WIDTH, Table

SIDES = ("workers", "servers")
TITLE = "what is timed of communication, means over ranks and steps, ms"
OF_EVERY_RUN = frozenset(column.name for column in COMM_COLUMNS)
OPTIMIZER, COMMUNICATION = "optimizer_ms", "comm_ms"

Times = dict[str, float | None]
Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def timed_columns(merged: MergedRun) -> list[str]:
    """The columns that hold milliseconds of a strategy or compressor, and how long it communicated at all."""
    written = pl.read_parquet_schema(merged.run.path / PARQUET)
    declared = read_columns(merged.run.ranks_dir)
    chosen = [name for name in declared if name == COMMUNICATION or name not in OF_EVERY_RUN]
    return [name for name in chosen if declared[name].unit == "ms" and name in written]


def rows_of_side(merged: MergedRun, side: str) -> pl.LazyFrame:
    """The merged rows of the ranks that serve, or of those that train."""
    serves = pl.col("rank") < merged.facts.servers
    return pl.scan_parquet(merged.run.path / PARQUET).filter(serves if side == "servers" else ~serves)


def timed_ms(merged: MergedRun) -> dict[str, Times]:
    """The `timed_ms` object of a summary: means over ranks and measured steps of what a side's rows hold."""
    measured = merged.measured.lazy().select("step")
    found: dict[str, Times] = {}
    for side in SIDES:
        names = [*timed_columns(merged), *([OPTIMIZER] if side == "servers" else [])]
        rows = rows_of_side(merged, side).join(measured, on="step", how="semi")
        means = rows.select(pl.col(name).mean() for name in names).collect().to_dicts()
        found[side] = {name: value for row in means for name, value in row.items() if value is not None}
    return found


def largest(merged: MergedRun, side: str, column: str) -> float | None:
    """Of a column over a side's ranks and measured steps; None where there are none, or it is not known."""
    measured = merged.measured.lazy().select("step")
    rows = rows_of_side(merged, side).join(measured, on="step", how="semi")
    peak = rows.select(pl.col(column).max()).collect().item()
    return None if peak is None else float(peak)


def timed_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm and side, means over launches.

    Args:
        launches: the arms.
        label: texts of a language.

    Returns:
        None where no strategy or compressor times anything of its own.
    """
    rows = [
        (name, side, means)
        for name, summaries in launches.items()
        for side in SIDES
        if (means := _means(summaries, side))
    ]
    columns = list(dict.fromkeys(column for *_, means in rows for column in means))
    if OF_EVERY_RUN.issuperset(columns):
        return None
    headings = [label(f"timed.{column}", column.removesuffix("_ms").replace("_", " ")) for column in columns]
    cells = [
        [f"{name}, {label(f'timed.{side}', side)}", *(format_value(means.get(column), "ms") for column in columns)]
        for name, side, means in rows
    ]
    return Table([label("headings.arm", "arm"), *headings], cells, label("timed.title", TITLE), width=MARKDOWN_WIDTH)


def _means(summaries: Sequence[Mapping[str, object]], side: str) -> dict[str, float]:
    """Of the launches that have a column, by column."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        timed = summary.get("timed_ms")
        times = timed.get(side) if isinstance(timed, Mapping) else None
        for name, value in (times or {}).items():
            found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}

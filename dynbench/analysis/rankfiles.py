"""Tolerant reading of the per-rank CSV files: what can be read is read, what cannot is counted and named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from dynbench.runs.columns import Column, read_columns
from dynbench.runs.phrase import Phrase
from dynbench.runs.records import COLUMNS, LATER, MAY_BE_EMPTY

_INTEGERS = {
    "step": pl.Int32(),
    "rank": pl.Int32(),
    "warmup": pl.Int8(),
    "local_batch": pl.Int32(),
    "micro_batches": pl.Int32(),
    "max_seq_len_in_batch": pl.Int32(),
    "real_tokens": pl.Int32(),
    "padded_tokens": pl.Int32(),
    "real_tokens2": pl.Int64(),
    "padded_tokens2": pl.Int64(),
    "work_hash": pl.UInt64(),
    "skipped": pl.Int8(),
}

_FILE = re.compile(r"^rank_(\d+)\.csv$")


def column_type(name: str, declared: Mapping[str, Column] | None = None) -> pl.DataType:
    """Storage type of a column: times and memory in single precision, so that ten million rows fit in 1 GB."""
    if name in _INTEGERS:
        return _INTEGERS[name]
    if name in ("policy", "layout"):
        return pl.Categorical()
    column = (declared or {}).get(name)
    if column is not None and column.type != "number":
        return pl.Int64() if column.type == "integer" else pl.Categorical()
    return pl.Float64() if name in ("loss", "weight") else pl.Float32()


@dataclass(frozen=True)
class RankFile:
    """One rank's rows.

    Attributes:
        rank: from the file's name.
        rows: the readable rows in order of step, or None where the file cannot be used.
        torn_lines: lines dropped because they were incomplete or unreadable.
        note: what was wrong with the file, None when nothing was.
    """

    rank: int
    rows: pl.DataFrame | None
    torn_lines: int = 0
    note: Phrase | None = None


def find_rank_files(folder: Path) -> dict[int, Path]:
    """Rank to file, for every `rank_<n>.csv` of a folder; empty when the folder does not exist."""
    if not folder.is_dir():
        return {}
    matches = ((_FILE.match(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def read_rank_file(rank: int, path: Path) -> RankFile:
    """Reads one file; a torn last line, unreadable lines and repeated steps are dropped and counted.

    Columns beyond those of every run are kept, with the types declared beside the file. In a file without weights
    every sample counts 1, and one without layouts is of padded batches; squares of lengths that were not recorded are
    null.
    """
    declared = read_columns(path.parent)
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    torn = int(end < len(data))
    data = data[:end]
    if not data:
        return RankFile(rank, None, torn, Phrase.of("rank_file.empty", file=path.name))
    columns = data[: data.index(b"\n")].decode("utf-8", errors="replace").strip().split(",")
    lacking = [name for name in COLUMNS if name not in (*columns, *LATER)]
    if lacking:
        return RankFile(rank, None, torn, Phrase.of("rank_file.version", file=path.name, columns=lacking[:4]))
    rows = _parse(data, {name: column_type(name, declared) for name in columns})
    if "weight" not in columns:
        rows = rows.with_columns(weight=pl.col("local_batch").cast(column_type("weight")))
    if "layout" not in columns:
        rows = rows.with_columns(layout=pl.lit("padded").cast(column_type("layout")))
    written = data.count(b"\n") - 1
    whole = [name for name in COLUMNS if name in rows.columns and name not in MAY_BE_EMPTY]
    rows = rows.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in whole))
    lost = [name for name in COLUMNS if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None, column_type(name)).alias(name) for name in lost)
    torn += written - rows.height
    if rows.height and not rows["rank"].eq(rank).all():
        ranks = rows["rank"].unique().to_list()
        return RankFile(rank, None, torn, Phrase.of("rank_file.other_rank", file=path.name, ranks=ranks))
    if not rows.height:
        return RankFile(rank, None, torn, Phrase.of("rank_file.no_row", file=path.name))
    if not rows["step"].is_sorted() or rows["step"].n_unique() < rows.height:
        kept = rows.unique("step", keep="first").sort("step")
        dropped = rows.height - kept.height
        return RankFile(rank, kept, torn, Phrase.of("rank_file.order", file=path.name, rows=dropped))
    return RankFile(rank, rows, torn)


def _parse(data: bytes, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """All rows; cells that cannot be read become null."""
    try:
        return pl.read_csv(data, schema=schema)
    except pl.exceptions.PolarsError:
        return pl.read_csv(data, schema=schema, ignore_errors=True, truncate_ragged_lines=True)

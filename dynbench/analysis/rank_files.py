"""The files that ranks write, read tolerantly: their rows, and when their collectives were under way.

Nothing is transferred before the last of those that take part has called: up to then a call waits. Moments of several
ranks are brought to rank 0's clock by the offsets in env.json.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import polars as pl

from dynbench.runs.phrase import Phrase
from dynbench.runs.records import CALL_COLUMNS, COLUMNS, EVERYONE, LATER, MAY_BE_EMPTY, MOST_CALLS, Column, read_columns
from dynbench.runs.run import Run
from dynbench.units import Unit

_STORED = {
    "policy": pl.Categorical(),
    "layout": pl.Categorical(),
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
    "loss": pl.Float64(),
    "weight": pl.Float64(),
}
"""Types of columns that every run has; the others are numbers."""

_FILE = re.compile(r"^rank_(\d{1,6})\.csv$")  # no launch has a million ranks, and arrays have a place for each
_NS = 1e6
_SCHEMA = {
    "step": pl.Int32,
    "operation": pl.Categorical,
    "peer": pl.Int32,
    "number": pl.Int32,
    "bytes_wire": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def _column_type(name: str, declared: Mapping[str, Column] | None = None) -> pl.DataType:
    """Storage type of a column: times and memory in single precision, so that ten million rows fit in 1 GB."""
    column = (declared or {}).get(name)
    declared_types = {"integer": pl.Int64(), "text": pl.Categorical(), "number": pl.Float32()}
    return _STORED.get(name) or declared_types[column.type if column else "number"]


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


def find_rank_files(*folders: Path) -> dict[int, Path]:
    """Rank to `rank_<n>.csv` over folders of a run; where two hold the same rank, the longer file counts."""
    found: dict[int, Path] = {}
    for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        if match := _FILE.match(path.name):
            known = found.setdefault(int(match[1]), path)
            if path.stat().st_size > known.stat().st_size:
                found[int(match[1])] = path
    return dict(sorted(found.items()))


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
    rows = _parse(data, {name: _column_type(name, declared) for name in columns})
    if "weight" not in columns:
        rows = rows.with_columns(weight=pl.col("local_batch").cast(_column_type("weight")))
    if "layout" not in columns:
        rows = rows.with_columns(layout=pl.lit("padded").cast(_column_type("layout")))
    written = data.count(b"\n") - 1
    whole = [name for name in COLUMNS if name in rows.columns and name not in MAY_BE_EMPTY]
    if rows.select(whole).null_count().sum_horizontal().item():
        rows = rows.drop_nulls(whole)
    lost = [name for name in COLUMNS if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None, _column_type(name)).alias(name) for name in lost)
    torn += written - rows.height
    if rows.height and not rows["rank"].eq(rank).all():
        ranks = rows["rank"].unique().to_list()
        return RankFile(rank, None, torn, Phrase.of("rank_file.other_rank", file=path.name, ranks=ranks))
    if not rows.height:
        return RankFile(rank, None, torn, Phrase.of("rank_file.no_row", file=path.name))
    if not rows["step"].is_sorted() or rows["step"].n_unique() < rows.height:
        first_rows = rows.unique("step", keep="first").sort("step")
        dropped = rows.height - first_rows.height
        return RankFile(rank, first_rows, torn, Phrase.of("rank_file.order", file=path.name, rows=dropped))
    constant = rows.select(pl.all().eq_missing(pl.all().first()).all()).row(0, named=True)
    rows = rows.with_columns(pl.col(name).first() for name, same in constant.items() if same)  # kept as one value
    return RankFile(rank, rows, torn)


def _parse(data: bytes, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """All rows; cells that cannot be read become null."""
    try:
        return pl.read_csv(data, schema=schema)
    except pl.exceptions.PolarsError:
        return pl.read_csv(data, schema=schema, ignore_errors=True, truncate_ragged_lines=True)


_log = logging.getLogger(__name__)
WAIT, TRANSFER = "comm_wait_ms", "comm_transfer_ms"
"""Columns that the merge adds to rows."""


def read_calls(folders: Sequence[Run], ranks: Sequence[int], ahead_ns: Sequence[int] = ()) -> pl.DataFrame | None:
    """All calls of a run, each with when the last of those that take part had called.

    Args:
        folders: of the run, on all its nodes.
        ranks: of which all have to have called what everybody takes part in.
        ahead_ns: by rank, what its clock is ahead of rank 0's; without it, all read one.

    Returns:
        The columns of the file, `rank`, and `entered_ns`, within `start_ns` and `end_ns`, all on one clock, null where
        the call of some rank is not known; None of runs that keep no calls.
    """
    found = []
    for rank in ranks:
        path = next((path for folder in folders if (path := folder.calls_file(rank)).is_file()), None)
        if path is None:
            return None
        ends = pl.col("start_ns", "end_ns") - (ahead_ns[rank] if rank < len(ahead_ns) else 0)
        calls = _read(path)
        if calls is None:
            return None
        found.append(calls.drop_nulls().with_columns(ends, rank=pl.lit(rank, pl.Int32)))
    if not found:
        return None
    everyone, sends = pl.col("peer") == EVERYONE, pl.col("operation") == "send"
    this, peer = pl.col("rank"), pl.col("peer")
    calls = pl.concat(found).with_columns(
        source=pl.when(everyone).then(EVERYONE).when(sends).then(this).otherwise(peer),
        target=pl.when(everyone).then(EVERYONE).when(sends).then(peer).otherwise(this),
        wanted=pl.when(everyone).then(len(ranks)).otherwise(2),
    )
    same = ("source", "target", "number")
    last = pl.when(pl.len().over(same) == pl.col("wanted")).then(pl.col("start_ns").max().over(same))
    entered = pl.min_horizontal(pl.max_horizontal("start_ns", last), "end_ns")
    return calls.with_columns(entered_ns=pl.when(last.is_not_null()).then(entered)).drop("source", "target", "wanted")


def _read(path: Path) -> pl.DataFrame | None:
    """The calls of a file, cells that cannot be read null; None, and a warning, where it holds something else."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]  # a killed rank may leave a torn line
    if whole and not whole.startswith(f"{','.join(CALL_COLUMNS)}\n".encode()):
        _log.warning("%s: has other columns than %s; the run's calls go without it", path, ", ".join(CALL_COLUMNS))
        return None
    if not whole:
        return pl.DataFrame(schema=_SCHEMA)
    return pl.read_csv(whole, schema=_SCHEMA, ignore_errors=True, truncate_ragged_lines=True)


def waiting_and_transfer(calls: pl.DataFrame) -> pl.DataFrame:
    """By `rank` and `step`: the time in which something was transferred, and that in which all under way waited, ms.

    Null where that of some call is not known.
    """
    by = ["rank", "step"]
    whole = calls.group_by(by).agg(known=pl.col("entered_ns").is_not_null().all())
    times = whole.join(_union_ms(calls, by, "start_ns", "busy"), on=by).join(
        _union_ms(calls.drop_nulls("entered_ns"), by, "entered_ns", TRANSFER), on=by, how="left"
    )
    known = pl.when(pl.col("known"))
    return times.select(
        *by,
        known.then(pl.col(TRANSFER)).cast(pl.Float32),
        known.then(pl.col("busy") - pl.col(TRANSFER)).cast(pl.Float32).alias(WAIT),
    )


class Operation(TypedDict):
    """What a rank of a side did of an operation in a measured step, means over its ranks and the steps."""

    side: str
    """worker, or server for ranks that train nothing."""
    operation: str
    """all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send or receive."""
    calls: float
    """How often."""
    ms: float
    """Sum over calls of the time each was under way."""
    wait_ms: float | None
    """Of that, until the last rank had called; null where that of some rank is not known."""
    transfer_ms: float | None
    """The rest of that time."""
    bytes: float
    """Sent, by the formula."""
    gb_per_s: Annotated[float | None, Unit("GB/s")]
    """Sent over the time of the transfer; null of receives."""


def by_operation(calls: pl.DataFrame, steps: pl.Series, servers: int) -> list[Operation]:
    """By side, and by the time of each operation.

    Args:
        calls: of `read_calls`.
        steps: the measured ones; those after the last of which every rank has kept calls are left out.
        servers: how many of the ranks serve the others, the first ones.
    """
    last = calls.group_by("rank").agg(pl.col("step").max())["step"].min()
    counted = steps.filter(steps <= last) if isinstance(last, int) and calls.height >= MOST_CALLS else steps
    here = calls.filter(pl.col("step").is_in(counted.implode()))
    if not counted.len() or not here.height:
        return []
    side = pl.when(pl.col("rank") < servers).then(pl.lit("server")).otherwise(pl.lit("worker"))
    ranks = calls["rank"].n_unique()
    rows = pl.when(pl.col("side") == "server").then(servers).otherwise(ranks - servers) * counted.len()
    unknown = pl.col("entered_ns").null_count() > 0
    wait, transfer = (pl.col("entered_ns") - pl.col("start_ns")).sum(), (pl.col("end_ns") - pl.col("entered_ns")).sum()
    summed = here.group_by(side.alias("side"), "operation").agg(
        calls=pl.len(),
        ms=(pl.col("end_ns") - pl.col("start_ns")).sum() / _NS,
        wait_ms=pl.when(~unknown).then(wait / _NS),
        transfer_ms=pl.when(~unknown).then(transfer / _NS),
        bytes=pl.col("bytes_wire").sum(),
    )
    per_row = summed.with_columns(pl.col("calls", "ms", "wait_ms", "transfer_ms", "bytes") / rows)
    sent = (pl.col("bytes") > 0) & (pl.col("transfer_ms") > 0)
    speed = pl.when(sent).then(pl.col("bytes") / pl.col("transfer_ms") / 1e6)
    ordered = per_row.with_columns(pl.col("operation").cast(pl.String), gb_per_s=speed).sort(
        "side", "ms", descending=[True, True]
    )
    return [Operation(**row) for row in ordered.to_dicts()]  # type: ignore[typeddict-item]  # polars' values are Any


def _union_ms(calls: pl.DataFrame, by: list[str], start: str, name: str) -> pl.DataFrame:
    """Length of the union of the intervals from `start` to `end_ns`, ms, by rank and step."""
    reached = pl.col("end_ns").cum_max().shift(1).over(by)
    added = (pl.col("end_ns") - pl.max_horizontal(start, reached)).clip(lower_bound=0)
    return calls.sort(*by, start).with_columns(added=added).group_by(by).agg((pl.col("added").sum() / _NS).alias(name))

"""Merging the ranks' files of a run into one table, and into one row per step.

Statistics use complete steps only: those for which every rank whose file can be used has a row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import polars as pl

from dynbench.analysis.rank_files import (
    TRANSFER,
    WAIT,
    RankFile,
    find_rank_files,
    read_calls,
    read_rank_file,
    waiting_and_transfer,
)
from dynbench.analysis.run_facts import RunFacts, read_facts, status_phrase
from dynbench.analysis.steps import MERGED_COLUMNS, block_times, number_blocks, step_table
from dynbench.errors import RecordError
from dynbench.runs.atomic import replacing
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run

log = logging.getLogger(__name__)

CSV_ROWS = 1_000_000
"""The CSV copy of more rows than this is written on request only."""

PARQUET = "merged_metrics.parquet"
CSV = "merged_metrics.csv"
SIDES = ("workers", "servers")
"""The ranks that train, and those that serve them."""


@dataclass(frozen=True, eq=False)
class MergedRun:
    """A run's rows in a form that all statistics, checks and figures read.

    Attributes:
        run: where it comes from.
        facts: its configuration, environment and status.
        steps: one row per complete step in order of step, warm-up included, of the workers' rows alone; columns are in
            `steps.step_table`, and `block` of `steps.number_blocks`.
        blocks: one row per contiguous block of measured steps, with its time; columns are in `steps.block_times`.
        rows: rows of all ranks that could be read, warm-up included.
        ranks: ranks whose file can be used.
        incomplete_steps: steps for which some of `ranks` has no row.
        torn_lines: lines of rank files that were dropped.
        notes: what was wrong with which file.
        evaluations: step, loss, accuracy or perplexity, samples of every evaluation, in order of step.
        calls: when the collectives of every rank were under way, see `rank_files.read_calls`; None where that was not
            kept.
    """

    run: Run
    facts: RunFacts
    steps: pl.DataFrame
    blocks: pl.DataFrame
    rows: int
    ranks: tuple[int, ...]
    incomplete_steps: int = 0
    torn_lines: int = 0
    notes: tuple[Phrase, ...] = ()
    evaluations: pl.DataFrame = field(default_factory=pl.DataFrame)
    calls: pl.DataFrame | None = None

    @cached_property
    def measured(self) -> pl.DataFrame:
        """Complete steps after the warm-up."""
        return self.steps.filter(~pl.col("warmup"))

    @property
    def settling(self) -> int:
        """Steps after the warm-up that do not count: in a shared launch, those right after an evaluation."""
        later = pl.col("step") >= self.facts.config.train.warmup_steps
        return self.steps.filter(pl.col("warmup") & later).height

    @property
    def time_ms(self) -> float:
        """The run's time, ms: of its blocks of measured steps, each the maximum over ranks."""
        return float(self.blocks["time_ms"].sum())

    @property
    def label(self) -> str:
        """Name or id."""
        return self.run.label

    @property
    def world_size(self) -> int:
        """Ranks of the launch; no fewer than have rows, where a damaged configuration says so."""
        return max(self.facts.world_size or 0, 1 + max(self.ranks))

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Those of them that have no usable row."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    @property
    def workers(self) -> int:
        """Ranks that train (G)."""
        return self.world_size - self.facts.servers

    @cached_property
    def lacks(self) -> tuple[Phrase, ...]:
        """What is missing for a whole run, in words; empty for a whole one."""
        found = []
        if self.facts.status != "completed":
            found.append(Phrase.of("lacks.status", status=status_phrase(self.facts.status)))
        if self.missing_ranks:
            missing, first = len(self.missing_ranks), self.missing_ranks[:8]
            found.append(Phrase.of("lacks.ranks", missing=missing, world_size=self.world_size, ranks=first))
        measured, steps = self.measured.height, self.facts.config.train.steps - self.settling
        if measured < steps:
            found.append(Phrase.of("lacks.steps", measured=measured, steps=steps))
        return tuple(found)

    @property
    def partial(self) -> bool:
        """Whether something of the run is missing."""
        return bool(self.lacks)

    def side_rows(self, side: str) -> pl.LazyFrame:
        """The merged rows of the ranks of one of `SIDES`, with their number among those that train as `worker`."""
        worker = pl.col("rank") - self.facts.servers
        rows = pl.scan_parquet(self.run.path / PARQUET).with_columns(worker=worker)
        return rows.filter(pl.col("worker") < 0 if side == "servers" else pl.col("worker") >= 0)

    def worker_rows(self) -> pl.LazyFrame:
        """The merged rows of the ranks that train."""
        return self.side_rows("workers")

    def measured_rows(self, side: str = "workers") -> pl.LazyFrame:
        """Those of a side in measured steps."""
        return self.side_rows(side).filter(pl.col("step").is_in(self.measured["step"].implode()))

    def columns(self) -> list[str]:
        """Names of the merged rows' columns."""
        return list(pl.read_parquet_schema(self.run.path / PARQUET))

    def rank_rows(self, step: int) -> pl.DataFrame:
        """The merged rows of one step, one per worker in order of rank."""
        return self.worker_rows().filter(pl.col("step") == step).collect().sort("rank")


def merge_run(run: Run, elsewhere: Sequence[Run] = (), *, csv: bool | None = None) -> MergedRun:
    """Reads what a run's ranks wrote and writes `merged_metrics.parquet` (and .csv) into its folder.

    Rows stand rank by rank, each in order of step. To the ranks' columns the merge adds `comm_wait_ms` and
    `comm_transfer_ms` (what of a rank's `comm_ms` was waiting for the others, and transfer), `exposed_comm_ms` (least
    `sync_ms` of the step: what even the last worker to arrive spends), `wait_ms` (a worker's `sync_ms` less that),
    `global_batch`, `step_time_max_ms`, `loss_global` (mean over the step's samples by their weight), and the
    throughputs of the step in samples and real tokens per second. Ranks that train nothing have rows, and no part in
    what these add up to.

    Args:
        run: what to merge; the merged files go into its folder.
        elsewhere: folders of the same run on other nodes, whose rank files belong to it too.
        csv: write the CSV copy too; None writes it up to `CSV_ROWS` rows.

    Raises:
        RecordError: not a single row of a worker can be read (the message names what was found instead), or the run's
            record or configuration cannot.
    """
    merged, rows = read_merged(run, elsewhere)
    _write_merged(merged, rows, csv=merged.rows <= CSV_ROWS if csv is None else csv)
    return merged


def read_merged(run: Run, elsewhere: Sequence[Run] = ()) -> tuple[MergedRun, pl.LazyFrame]:
    """What `merge_run` finds, and the rows that it writes with what it adds; nothing is written.

    Raises:
        RecordError: as `merge_run`.
    """
    facts = read_facts(run)
    folders = [run, *elsewhere]
    paths = find_rank_files(*(folder.ranks_dir for folder in folders))
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:  # a small file keeps one thread busy
        files = list(pool.map(read_rank_file, paths, paths.values()))
    usable = {file.rank: file.rows for file in files if file.rows is not None}
    calls = (
        None if facts.virtual else read_calls(folders, range(facts.world_size or len(usable)), facts.clocks_ahead_ns)
    )
    if calls is not None:
        times = waiting_and_transfer(calls)
        usable = {rank: _with_times(rows, times.filter(pl.col("rank") == rank)) for rank, rows in usable.items()}
    workers = [rows for rank, rows in usable.items() if rank >= facts.servers]
    if not workers:
        raise _no_row(run, facts, files)
    steps, incomplete = step_table(workers)
    if facts.virtual:  # one process plays all ranks, so what each of them peaks at is no memory of its own
        steps = steps.with_columns(peak_mem_mb_std=pl.lit(None, pl.Float64))
    evaluations = _read_evaluations(folders)
    steps = number_blocks(steps, _steps_of(evaluations))
    merged = MergedRun(
        run=run,
        facts=facts,
        steps=steps,
        blocks=block_times(workers, steps),
        rows=sum(map(len, usable.values())),
        ranks=tuple(usable),
        incomplete_steps=incomplete,
        torn_lines=sum(file.torn_lines for file in files),
        notes=tuple(file.note for file in files if file.note),
        evaluations=evaluations,
        calls=calls,
    )
    return merged, pl.concat([rows.lazy() for rows in usable.values()], how="diagonal_relaxed")


def _with_times(rows: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """The rows of a rank, with its times waiting and transferring; 0 in steps without a collective."""
    if "collectives" not in rows.columns:
        return rows
    joined = rows.join(times.drop("rank"), on="step", how="left", maintain_order="left")
    idle = pl.col("collectives") == 0
    return joined.with_columns(pl.when(idle).then(0.0).otherwise(name).alias(name) for name in (WAIT, TRANSFER))


def _write_merged(merged: MergedRun, rows: pl.LazyFrame, *, csv: bool) -> None:
    """Streams the rows with the per-step columns to disk; files appear under their name only when whole."""
    per_step = merged.steps.lazy().select("step", *MERGED_COLUMNS)
    waited = pl.col("sync_ms") - pl.col("exposed_comm_ms").cast(pl.Float32)
    whole = rows.join(per_step, on="step", how="left", maintain_order="left").with_columns(
        wait_ms=pl.when(pl.col("rank") >= merged.facts.servers).then(waited)
    )
    folder = merged.run.path
    _write_whole(folder / PARQUET, partial(whole.sink_parquet, compression_level=1))  # a tenth larger, in half the time
    if csv:
        _write_whole(folder / CSV, whole.sink_csv)
    else:
        (folder / CSV).unlink(missing_ok=True)
        log.info("%s: %d rows, merged_metrics.csv left out; --csv writes it", merged.label, merged.rows)


def _write_whole(path: Path, write: Callable[[str], object]) -> None:
    """Let polars write a file, which does not always say that what is in its way is the disk.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    with replacing(path) as file:
        try:
            write(file.name)
        except pl.exceptions.PolarsError:
            file.seek(0, os.SEEK_END)
            file.write(bytes(2**20))  # raises what is in the way
            file.flush()
            raise


def _no_row(run: Run, facts: RunFacts, files: list[RankFile]) -> RecordError:
    if facts.unfinished:
        return RecordError(
            f"run {run.label} ({facts.status}) has no row yet",
            "Analyze it when it has ended; dynbench runs ls says when.",
        )
    found = "; ".join(file.note for file in files if file.note) or f"no rank files in {run.ranks_dir}"
    return RecordError(
        f"run {run.label} ({facts.status}) has no row that can be read: {found}",
        f"See {run.logs_dir} for why, and train again; `dynbench runs rm {run.id}` removes it.",
    )


def _read_evaluations(folders: Sequence[Run]) -> pl.DataFrame:
    """Rows of eval.csv (step, loss, accuracy or perplexity with its tokens, samples), which only the first rank writes.

    The accuracy is null where the workload has none. Empty where the run never evaluated.
    """
    paths = (folder.path / "eval.csv" for folder in folders)
    path = next((path for path in paths if path.is_file() and path.stat().st_size), None)
    if path is None:
        return pl.DataFrame()
    numbers = dict.fromkeys(("loss", "accuracy", "perplexity"), pl.Float64)  # a column of `nan` alone looks like text
    rows = pl.read_csv(path, ignore_errors=True, truncate_ragged_lines=True, schema_overrides=numbers)
    return rows.drop_nulls([column for column in rows.columns if column != "accuracy"])


def _steps_of(evaluations: pl.DataFrame) -> list[int]:
    """Steps after which the run evaluated, and every rank's clock began anew."""
    if "step" not in evaluations.columns:
        return []
    return evaluations["step"].cast(pl.Int64, strict=False).drop_nulls().to_list()

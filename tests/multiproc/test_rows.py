"""What a launch leaves behind: rows of every rank and step, evaluation, logs, facts."""

from __future__ import annotations

import csv

import numpy as np
import polars as pl
import pytest
from multiproc.launches import rows_of

from dynbench.runs.columns import COMM_COLUMNS, TURN, read_columns
from dynbench.runs.records import COLUMNS
from dynbench.runs.run import Run
from dynbench.runs.run_record import Status

pytestmark = pytest.mark.multiproc

STEPS, WARMUP, RANKS, BATCH = 8, 2, 2, 12


def test_every_rank_has_a_row_for_every_step(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert rows.select("step", "rank").rows() == [(step, rank) for step in range(STEPS) for rank in range(RANKS)]
    assert tuple(rows.columns) == (*COLUMNS, *(column.name for column in (TURN, *COMM_COLUMNS)))
    assert tuple(read_columns(static_run.ranks_dir).values()) == (TURN, *COMM_COLUMNS)
    assert rows["bytes_raw"].n_unique() == 1
    assert (rows["bytes_wire"] == rows["bytes_raw"]).all(), "a ring of two"
    assert (rows["gradient_bytes_raw"] == rows["gradient_bytes_wire"]).all(), "as they are"
    assert rows["gradient_bytes_raw"].min() > 0.99 * rows["bytes_wire"].max()
    assert (rows["comm_ms"] > 0).all()


def test_warm_up_is_marked_and_kept(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert rows.filter(rows["warmup"] == 1)["step"].unique().sort().to_list() == list(range(WARMUP))


def test_ranks_share_the_global_batch(partition_run: Run) -> None:
    totals = rows_of(partition_run).group_by("step").agg(pl.col("local_batch").sum().alias("total"))
    assert totals["total"].unique().to_list() == [BATCH]


def test_phases_add_up_to_the_step(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert np.allclose(rows["forward_ms"] + rows["backward_ms"], rows["compute_ms"])
    phases = rows.select("plan_ms", "data_ms", "compute_ms", "sync_ms", "optimizer_ms").sum_horizontal()
    assert (phases <= rows["step_time_ms"] + 1e-6).all()
    assert all((rows[name] >= 0).all() for name in rows.columns if name.endswith("_ms"))


def test_padded_tokens_are_samples_times_longest(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert (rows["padded_tokens"] == rows["local_batch"] * rows["max_seq_len_in_batch"]).all()
    assert (rows["real_tokens"] <= rows["padded_tokens"]).all()


def test_peak_memory_is_measured(static_run: Run) -> None:
    rows = rows_of(static_run)
    assert (rows["peak_mem_mb"] > 50).all() and (rows["reserved_mem_mb"] > 50).all()


def test_record_facts_and_logs(static_run: Run) -> None:
    assert static_run.status is Status.COMPLETED
    assert static_run.record().exit_code == 0
    env = static_run.env()
    assert [device["rank"] for device in env["devices"]["ranks"]] == [0, 1]
    assert env["data"]["fingerprint"] and env["data"]["lengths"]["samples"] == 96
    assert env["decisions"]["measured.torch_threads"]["value"] == 1
    assert "resident" in env["decisions"]["measured.peak_mem_mb"]["value"]
    assert sorted(path.name for path in static_run.logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_evaluation_is_over_all_ranks(static_run: Run) -> None:
    with (static_run.path / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["samples"]) for row in rows] == [("7", "16")]
    assert 0 <= float(rows[0]["accuracy"]) <= 1 and float(rows[0]["loss"]) > 0

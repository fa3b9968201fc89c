"""A training in turns with the same without communication: two runs, and what the first takes more."""

from __future__ import annotations

import polars as pl
import pytest
from forked import forked_ranks
from multiproc.launches import TINY, rows_of

from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.experiment.training import run_training
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc


def test_a_training_beside_its_like_without_communication(store: RunStore) -> None:
    config = load_config(None, [*TINY, "sync.name=fsdp", "train.steps=4", "train.exposed=true"])
    with forked_ranks():
        result = run_training(config, store, name="both")
    assert result is not None and result.summary is not None
    null = store.resolve("both-null")
    assert result.silent is not None and result.silent.run.id == null.id and result.silent.summary is not None
    assert (result.run.status, null.status) == (Status.COMPLETED, Status.COMPLETED)
    against = result.summary["against_null"]
    assert isinstance(against, dict) and (against["run"], against["steps"]) == (null.id, 4)
    assert result.summary["exposed_vs_null_ms"] == {"mean": against["exposed_ms"]}
    silent = rows_of(null)
    assert (silent["bytes_wire"] == 0).all() and (silent["collectives"] == 0).all()
    rows = rows_of(result.run)
    assert (rows["sync_forward_ms"] > 0).all() and (rows["sync_backward_ms"] > 0).all(), "fsdp gathers in both"
    within = pl.sum_horizontal("sync_forward_ms", "sync_backward_ms", "sync_optimizer_ms")
    assert rows.select((within <= pl.col("sync_ms") + 1e-6).all()).item()
    assert rows.select((pl.col("hidden_comm_ms") <= pl.col("comm_ms") + 1e-6).all()).item()
    merged = merge_run(result.run)
    parts = merged.steps.select(pl.col("comm_wait_ms") + pl.col("comm_transfer_ms") - pl.col("comm_ms")).to_series()
    assert parts.abs().max() < 1e-2, "they add up, on one clock"
    told = result.summary["by_operation"]
    assert isinstance(told, list)
    assert {row["operation"] for row in told} >= {"all_gather", "reduce_scatter"}
    assert sum(row["calls"] for row in told) == pytest.approx(result.summary["collectives"]["mean"])  # type: ignore[index]

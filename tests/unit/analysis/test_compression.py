"""What a summary says of compression: times of measured steps, and the gradients' error wherever it was sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from compressed_runs import compressed_run

from dynbench.analysis.communication import compression_of
from dynbench.analysis.merge import PARQUET, MergedRun, merge_run
from dynbench.runs.run import Run

SAMPLED = 20
"""The only step in which the error was sampled; it is one behind an evaluation and counts in no time."""


@pytest.fixture
def merged(make_run: Callable[..., Run]) -> MergedRun:
    whole = merge_run(compressed_run(make_run, "fp8"))
    rows, here = pl.read_parquet(whole.run.path / PARQUET), pl.col("step") == SAMPLED
    first = pl.col("step") == 0
    rows = rows.with_columns(
        pl.when(here).then(0.3).when(first).then(9.0).alias("grad_rel_error"),
        pl.when(here).then(5.0).when(first).then(99.0).alias("residual_norm"),
        pl.when(here).then(1000.0).otherwise(2.0).alias("compress_ms"),
    )
    rows.write_parquet(whole.run.path / PARQUET)
    return replace(whole, steps=whole.steps.with_columns(pl.col("warmup") | here))


def test_an_error_sampled_behind_an_evaluation_is_known(merged: MergedRun) -> None:
    assert merged.settling == 1
    found = compression_of(merged)
    assert found is not None and (found["grad_rel_error"], found["residual_norm"]) == (0.3, 5.0)


def test_times_are_of_measured_steps_alone(merged: MergedRun) -> None:
    found = compression_of(merged)
    assert found is not None and found["compress_ms"] == 2.0 and found["grad_cos_sim"] is None

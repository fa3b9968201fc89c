"""The line of a run in results.csv, and the lines of all runs of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.results_csv import RESULTS_FILE
from dynbench.analysis.summary import summarise
from dynbench.config.schema import Analysis
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]

ASKED = [
    "run_name",
    "world_size",
    "model",
    "dataset",
    "max_length",
    "batch_size",
    "compress_method",
    "compress_config",
    "seed",
    "step_time_ms_mean",
    "step_time_ms_p50",
    "step_time_ms_p90",
    "tokens_per_s",
    "comm_time_ms_total",
    "comm_ratio",
    "comm_time_ms_by_op",
    "bytes_raw_total",
    "bytes_compressed_total",
    "compression_ratio",
    "train_loss",
    "val_loss",
    "val_ppl",
    "compress_time_ms",
    "decompress_time_ms",
    "extra_collectives",
    "extra_collective_time_ms",
    "index_bytes",
    "index_share",
    "density",
    "residual_norm",
    "residual_mb",
    "grad_rel_error",
    "grad_rel_error_max",
    "grad_cos_sim",
    "effective_bw_raw",
    "effective_bw_compressed",
    "mem_peak_alloc_gb",
    "mem_peak_reserved_gb",
    "nan_steps",
    "clipped_steps",
]
SENT: dict[str, float] = {
    "comm_ms": 2.0,
    "comm_sum_ms": 2.0,
    "hidden_comm_ms": 0.5,
    "collectives": 2,
    "bytes_raw": 4000,
    "bytes_wire": 1200,
    "gradient_bytes_raw": 2000,
    "gradient_bytes_wire": 500,
}
COMPRESSED: dict[str, float] = {
    "compresses": 1,
    "compress_ms": 1.5,
    "decompress_ms": 0.5,
    "extra_collectives": 1,
    "extra_collective_ms": 0.25,
    "payload_bytes": 800,
    "index_bytes": 200,
    "density": 0.01,
    "residual_mb": 3.0,
    "grad_rel_error": 0.5,
    "grad_rel_error_max": 0.7,
    "grad_cos_sim": 0.9,
    "residual_norm": 4.0,
    "grad_norm": 2.0,
    "clipped": 1,
}


def line_of(run: Run) -> dict[str, Any]:
    summary = summarise(run)
    (line,) = pl.read_csv(run.path / RESULTS_FILE).to_dicts()
    assert line == summary["record"]
    return line


def test_a_run_has_a_line_of_all_that_it_took(make_run: Make) -> None:
    line = line_of(make_run("static", overrides=("compress.name=topk",), extra=SENT | COMPRESSED, steps=40))
    assert set(ASKED) <= set(line)
    assert (line["compress_method"], json.loads(line["compress_config"])["ratio"]) == ("topk", 0.01)
    assert (line["bytes_raw_total"], line["bytes_compressed_total"]) == (40 * 2000, 40 * 500)
    assert (line["compression_ratio"], line["traffic_compression_ratio"]) == (4, 2700 / 1200)
    assert line["comm_time_ms_total"] == 80.0 and line["step_time_ms_p50"] < line["step_time_ms_p90"]
    assert line["comm_ratio"] == pytest.approx(2.0 / line["step_time_ms_mean"], rel=0.2)
    assert (line["effective_bw_raw"], line["effective_bw_compressed"]) == pytest.approx((2700 / 2e6, 1200 / 2e6))
    assert (line["index_share"], line["density"], line["residual_mb"]) == (0.25, pytest.approx(0.01), 3)
    assert (line["compress_time_ms"], line["extra_collective_time_ms"]) == (1.5, 0.25)
    assert (line["residual_norm"], line["mem_peak_reserved_gb"]) == (4, 0.6)
    assert (line["nan_steps"], line["clipped_steps"]) == (0, 40)


def test_what_is_not_known_is_empty(make_run: Make) -> None:
    line = line_of(make_run("static"))
    unknown = {name for name, value in line.items() if value is None}
    assert {"comm_ratio", "bytes_raw_total", "compress_time_ms", "grad_cos_sim", "val_ppl", "clipped_steps"} <= unknown
    assert (line["nan_steps"], json.loads(line["comm_time_ms_by_op"])) == (0, {})


def test_steps_without_a_number_are_counted(make_run: Make) -> None:
    assert summarise(make_run("static", loss_shift=float("nan")))["nan_steps"] == 40
    assert summarise(make_run("static", extra={"grad_norm": float("inf"), "clipped": 0}))["nan_steps"] == 40


def test_steps_left_as_they_are_count_in_no_ratio(make_run: Make) -> None:
    line = line_of(make_run("static", extra=SENT | COMPRESSED | {"compresses": 0}))
    assert (line["compression_ratio"], line["compress_time_ms"], line["bytes_raw_total"]) == (None, None, 80_000)


def test_a_comparison_has_a_line_per_run(make_run: Make, store: RunStore) -> None:
    runs = [make_run("static", seed=seed, extra=SENT) for seed in (0, 1)]
    runs.append(make_run("static", seed=0, extra=SENT | COMPRESSED, overrides=("compress.name=topk",)))
    report = analyze_runs(runs, store, Analysis())
    lines = pl.read_csv(Path(report.folder.path) / RESULTS_FILE)
    assert lines["run_name"].to_list() == [run.label for run in runs]
    assert lines["compress_method"].to_list() == ["none", "none", "topk"]
    assert lines["density"].to_list() == [None, None, pytest.approx(0.01)]

"""The accounting of large models: the published exercise's numbers, and formulas against counting and search."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from bench_jobs import made, rows_here
from golden.corpus import unpack

from dynbench.bench.accounting import PRESETS, batch_of_overlap, batch_of_sum, least_devices
from dynbench.bench.record import read_rows
from dynbench.runs.run import Run

EXERCISE = PRESETS["communication_accounting"]


def values(**options: object) -> dict[str, float]:
    return {row.case: row.p50 for row in rows_here(made("accounting", **options)) if row.p50 is not None}


PUBLISHED = {
    "parameters": 219_848_638_464,
    "weights, gradients and optimizer state, fp32": 3517.58,
    "saved for backward of a token, bf16": 17.547264,
    "least devices of 95 GB for FSDP, 8192 tokens each": 156,
    "compute-bound batch, axes not overlapped": 25_302,
    "compute-bound batch, axes overlapped": 20_445,
    "compute-bound batch per device, not overlapped, exact rings": 349.8,
    "best number of buckets": 36.5,
    "overhead of the best number of buckets": 3.65,
}


def test_the_published_exercise_and_all_that_was_recorded_of_it(tmp_path: Path) -> None:
    found = values()
    assert {name: found[name] for name in PUBLISHED} == pytest.approx(PUBLISHED, rel=1e-3)
    unpack("bench", tmp_path)
    recorded = read_rows(Run(next(tmp_path.glob("*-accounting-*"))))
    now, then = (
        [row.as_dict() | {"versions": None} for row in rows] for rows in (rows_here(made("accounting")), recorded)
    )
    assert now == then


def test_a_mesh_that_is_never_compute_bound_has_no_batch() -> None:
    wide = replace(EXERCISE, tensor=1024)
    assert math.isinf(batch_of_sum(wide)) and math.isinf(batch_of_overlap(wide))
    assert math.isinf(least_devices(EXERCISE, 100_000, 95e9))
    found = values(tensor=1024)
    assert "compute-bound batch, axes not overlapped" not in found and found["parameters"] == EXERCISE.parameters


def test_what_is_given_stands_in_for_the_presets() -> None:
    found = values(preset="xl_h100", layers=2, local_tokens=(64,))
    assert found["parameters"] == 2 * 1600 * 6400 * 2
    assert [name for name in found if name.endswith("64 tokens each") and " GB " in name] == [
        "least devices of 80 GB for FSDP, 64 tokens each"
    ]

"""Precision: sums that lose what they should, types under autocast, and times."""

from __future__ import annotations

import torch
from answered import unanswered
from bench_jobs import rows_here

from dynbench.bench.precision import HALF, PARTS, SUMS, PrecisionStudy, types_under
from dynbench.plugins.benchmarks import PrecisionOptions

CPU = torch.device("cpu")


def test_sums_types_and_times():
    options = PrecisionOptions(features=16, samples=4, iterations=2, warmup=1, device="cpu")
    benchmark = PrecisionStudy(options)
    rows = rows_here(benchmark)
    errors = [row.reference_error or 0.0 for row in rows if row.unit == "1"]
    assert len(errors) == len(SUMS) and errors[0] < 1e-3 < errors[1] and errors[0] < errors[2] == errors[3] < errors[1]
    types = {(row.dtype, row.case.split(": ")[1]): row.columns["shown"] for row in rows if row.unit == "bits"}
    assert len(types) == len(HALF) * len(PARTS)
    for half in HALF:
        assert types[half, "first layer"] == types[half, "logits"] == half
        assert types[half, "parameters"] == types[half, "gradients"] == "float32"
        bits = {row.p50 for row in rows if row.unit == "bits" and row.columns["shown"] == half}
        assert bits == {16.0}
    times = [row for row in rows if row.unit == "ms"]
    assert [row.dtype for row in times] == ["float32", *HALF] and all(row.n == 2 and row.p50 for row in times)
    assert len(benchmark.said(rows)) == 4 + 2 and unanswered("precision", rows) == []


def test_a_part_without_autocast_is_seen():
    assert set(types_under("bfloat16", CPU)) == set(PARTS)

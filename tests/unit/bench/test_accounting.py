"""The accounting of large models: the published exercise's numbers, and formulas against counting and search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from bench_jobs import rows_here

from dynbench.bench.accounting import PRESETS, Accounting, batch_of_overlap, batch_of_sum, least_devices
from dynbench.plugins.benchmarks import AccountingOptions

EXERCISE = PRESETS["communication_accounting"]


def values(options: AccountingOptions) -> dict[str, tuple[float, str | None]]:
    rows = rows_here(Accounting(options))
    assert all(row.n == 1 and row.columns["formula"] and row.columns["with"] for row in rows)
    return {row.case: (row.p50, row.unit) for row in rows if row.p50 is not None}


def test_the_published_exercise() -> None:
    found = values(AccountingOptions())
    expected: dict[str, tuple[float, str]] = {
        "parameters": (219_848_638_464, "parameters"),
        "weights, fp32": (879.39, "GB"),
        "weights, gradients and optimizer state, fp32": (3517.58, "GB"),
        "weights, gradients and optimizer state, fp32, in GiB": (3276, "GiB"),
        "saved for backward of a token, bf16": (17.547264, "MB"),
        "accelerators of 80 GB for the state alone": (44, "devices"),
        "accelerators of 80 GiB for the state alone": (41, "devices"),
        "least devices of 95 GB for FSDP, 0 tokens each": (38, "devices"),
        "least devices of 95 GiB for FSDP, 0 tokens each": (35, "devices"),
        "least devices of 95 GB for FSDP, 1024 tokens each": (41, "devices"),
        "least devices of 95 GB for FSDP, 2048 tokens each": (46, "devices"),
        "least devices of 95 GB for FSDP, 4096 tokens each": (61, "devices"),
        "least devices of 95 GB for FSDP, 8192 tokens each": (156, "devices"),
        "compute-bound batch, axes not overlapped": (25_302, "tokens"),
        "compute-bound batch per device, axes not overlapped": (395.3, "tokens"),
        "compute-bound batch per FSDP shard, axes not overlapped": (1581.3, "tokens"),
        "compute-bound batch, axes overlapped": (20_445, "tokens"),
        "compute-bound batch per device, axes overlapped": (319.4, "tokens"),
        "compute-bound batch per device, not overlapped, exact rings": (349.8, "tokens"),
        "compute-bound batch per device, best mesh, axes not overlapped": (245.3, "tokens"),
        "compute-bound batch per device, best mesh, axes overlapped": (61.3, "tokens"),
        "least F for the tensor axis, axes overlapped": (10_222, "channels"),
        "best X at that batch": (7.8, "devices"),
        "best number of buckets": (36.5, "buckets"),
        "best size of a bucket": (219.1, "MB"),
        "overhead of the best number of buckets": (3.65, "ms"),
    }
    for name, (value, unit) in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-3), unit), name
    assert found["compute-bound batch, axes not overlapped"][0] == 25_302
    assert round(found["weights, gradients and optimizer state, fp32"][0], 2) == 3517.58
    levers = {name: value for name, (value, _) in found.items() if name.startswith("compute-bound batch with ")}
    assert len(levers) >= 4 and all(value < 25_302 for value in levers.values())


@pytest.mark.parametrize("exact", [False, True])
def test_from_that_batch_on_computing_takes_longer_than_sending(exact: bool) -> None:
    def bound(batch: float) -> bool:
        x, y = EXERCISE.fsdp, EXERCISE.tensor
        weights = 2 * 2 * EXERCISE.width * EXERCISE.inner / y / (EXERCISE.bandwidth * EXERCISE.fsdp_links)
        states = 2 * 2 * batch * EXERCISE.width / x / (EXERCISE.bandwidth * EXERCISE.tensor_links)
        sent = weights * ((x - 1) / x if exact else 1) + states * ((y - 1) / y if exact else 1)
        return sent < 4 * batch * EXERCISE.width * EXERCISE.inner / (x * y) / EXERCISE.flops

    batch = batch_of_sum(EXERCISE, exact=exact)
    assert bound(batch * 1.001) and not bound(batch * 0.999)


def test_devices_are_the_fewest_that_hold_it() -> None:
    def needed(devices: int, tokens: int) -> float:
        activations = EXERCISE.saved_per_token * tokens
        return 16 * EXERCISE.parameters / devices + activations / 2 + activations / 2 / devices

    for tokens in EXERCISE.local_tokens:
        least = math.ceil(least_devices(EXERCISE, tokens, 95e9))
        assert needed(least, tokens) <= 95e9 < needed(least - 1, tokens)
    assert math.isinf(least_devices(EXERCISE, 100_000, 95e9))


def test_a_mesh_that_is_never_compute_bound_has_no_batch() -> None:
    wide = replace(EXERCISE, tensor=1024)
    assert math.isinf(batch_of_sum(wide)) and math.isinf(batch_of_overlap(wide))
    found = values(AccountingOptions(tensor=1024))
    assert "compute-bound batch, axes not overlapped" not in found and found["parameters"][0] == EXERCISE.parameters


def test_what_is_given_stands_in_for_the_presets() -> None:
    found = values(AccountingOptions(preset="xl_h100", layers=2, local_tokens=(64,)))
    assert found["parameters"][0] == 2 * 1600 * 6400 * 2
    assert [name for name in found if "FSDP," in name and "GB" in name] == [
        "least devices of 80 GB for FSDP, 64 tokens each"
    ]
    said = Accounting(AccountingOptions(layers=2)).said([])
    assert "layers=2" in said[0] and "width=16384" in said[0] and "GB is 1e9 bytes" in said[1]

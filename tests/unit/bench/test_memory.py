"""Memory by phase: peaks that are exact where they can be counted by hand, phases in their order, residuals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from answered import unanswered
from bench_jobs import rows_here
from torch import nn

from dynbench.bench import memory as memory_bench
from dynbench.bench.base import Row
from dynbench.bench.measuring import changes_of, largest, thinned, traced_changes, watch
from dynbench.bench.memory import PHASES, Memory
from dynbench.bench.model_step import parameters_of
from dynbench.plugins.benchmarks import MemoryOptions

CPU = torch.device("cpu")
LOGITS_MB = 4 * 16 * 10_000 * 4 / 1e6
"""Four rows of 16 tokens, 10,000 words."""


def rows(folder: Path | None = None, **options: object) -> list[Row]:
    benchmark = Memory(MemoryOptions.model_validate({"contexts": (8, 16), "precisions": ("fp32",), **options}))
    benchmark.folder = folder
    return rows_here(benchmark)


def peaks(measured: list[Row]) -> Mapping[tuple[int, str], Row]:
    found = [row for row in measured if row.columns["quantity"] == "peak"]
    return {(row.columns["context"], row.columns["phase"]): row for row in found}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Path]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "ranks").mkdir()
    return rows(folder), folder


def test_peaks_grow_from_phase_to_phase_and_with_the_context(measured):
    found, _ = measured
    by = peaks(found)
    assert {(row.status, row.unit) for row in found} == {("ok", "MB")}
    assert unanswered("memory", found) == ["1.5c"], "which is about mixed precision"
    assert all(by[8, phase].p50 < by[16, phase].p50 for phase in PHASES)
    for n in (8, 16):
        forward, saved, step = (by[n, phase] for phase in ("forward", "forward_saved", "step"))
        assert forward.p50 < saved.p50 < step.p50
        assert max(forward.columns["saved_mb"], step.columns["saved_mb"]) < 1e-3 < saved.columns["saved_mb"]
        parameters = forward.columns["before_mb"]
        assert step.columns["before_mb"] == pytest.approx(3 * parameters, rel=1e-3)
        logits = LOGITS_MB * n / 16
        assert forward.p50 == pytest.approx(parameters + 2 * logits, abs=0.1)  # and their softmax


def test_the_residual_stream_is_as_its_formula_says(measured, monkeypatch):
    residual = [row for row in measured[0] if row.columns["quantity"] == "residual"]
    assert [(row.p50, row.reference_error) for row in residual] == [(4 * 4 * n * 128 / 1e6, 0) for n in (8, 16)]
    benchmark = Memory(MemoryOptions())
    assert len(benchmark.said(measured[0])) == 2
    monkeypatch.setattr(memory_bench, "residual_bytes", lambda batch, context, width: 2 * batch * context * width)
    wrong = rows(contexts=(8,))
    assert any("residual stream is off its formula" in line for line in benchmark.said(wrong))


def test_the_largest_tensors_say_where_they_are_made(measured):
    for phase, place in (("forward", "modeling_gpt2.py:"), ("step", "Backward")):
        wanted = {"quantity": "tensor", "context": 16, "phase": phase}
        tensors = [row for row in measured[0] if wanted.items() <= row.columns.items()]
        sizes = [row.p50 for row in tensors]
        assert len(tensors) == 3 and sizes == sorted(sizes, reverse=True) and sizes[0] >= LOGITS_MB
        assert any(place in str(row.columns["stack"]) for row in tensors)


def test_timelines_reach_the_peak(measured):
    found, folder = measured
    lines = [json.loads(line) for line in (folder / "ranks" / "timelines.jsonl").read_text().splitlines()]
    assert [(line["context"], line["phase"]) for line in lines] == [(n, phase) for n in (8, 16) for phase in PHASES]
    for line in lines:
        row = peaks(found)[line["context"], line["phase"]]
        assert max(line["mb"]) == pytest.approx(row.p50) and line["mb"][0] == pytest.approx(row.columns["before_mb"])
        assert line["ms"] == sorted(line["ms"])


def test_what_is_watched_is_counted_to_the_byte():
    def work() -> torch.Tensor:
        result = torch.ones(1000)
        del_me = torch.ones(3000)
        return result + del_me[:1000]

    _, changes = watch(work, CPU)
    assert (changes.most, changes.after) == (4 * 5000, 4 * 1000)
    (first, *_) = largest(work, 1)
    assert (first.nbytes, first.times, first.operator) == (12_000, 1, "aten.ones.default")
    assert "test_memory.py" in first.stack and "work" in first.stack


def test_thinned_timelines_keep_the_most():
    changes = changes_of([(float(at), 1 if at != 5000 else 10**6) for at in range(9000)])
    ms, nbytes = thinned(changes)
    assert len(ms) <= 2000 and nbytes.max() == changes.most and np.all(np.diff(ms) > 0)


def test_a_memory_history_of_cuda_is_read():
    done = [("segment_alloc", 2**21), ("alloc", 512), ("alloc", 1024), ("free_requested", 512), ("free_completed", 512)]
    trace = [{"action": action, "size": size, "time_us": 1000 * ms} for ms, (action, size) in enumerate(done)]
    changes = changes_of(traced_changes({"device_traces": [[], trace]}, 1))
    assert changes.nbytes.tolist() == [0, 512, 1536, 1024] and changes.ms.tolist() == [0, 0, 1, 3]


def test_storages_are_counted_once():
    layer = nn.Linear(4, 4, bias=False)
    assert memory_bench.storage_bytes([layer.weight, layer.weight.T, layer.weight[:2]]) == 64
    assert parameters_of(nn.ModuleList([layer, layer])) == 16

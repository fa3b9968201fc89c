"""A model's step: phases that add up, FLOPs, warm-up, memory to the byte, and precision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from answered import unanswered
from bench_jobs import made, rows_here
from hands import Hands
from torch import nn
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils.flop_counter import FlopCounterMode

from dynbench.bench import memory as memory_bench
from dynbench.bench import model_step, transformer
from dynbench.bench.base import Row
from dynbench.bench.measuring import changes_of, largest, thinned, traced_changes, watch
from dynbench.bench.model_step import config_of, forward_flops, parameters_of
from dynbench.bench.precision import HALF, PARTS, SUMS
from dynbench.bench.transformer import PHASES, peak_flops
from dynbench.workloads.models import LANGUAGE_MODEL, make_model

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"contexts": (8,), "precisions": ("fp32",), "iterations": 3, "warmup": 3, "device": "cpu"}


def rows(**changes: object) -> list[Row]:
    return rows_here(made("transformer", **{**SMALL, **changes}))


def test_phases_of_every_model_and_what_warm_up_leaves_out():
    measured = rows(precisions=("fp32", "bf16"))
    first, second = ([row for row in measured if row.dtype == dtype] for dtype in ("float32", "bfloat16"))
    assert [row.columns["warmup"] for row in first] == [each for each in (0, 1, 2, 3) for _ in PHASES]
    assert [row.columns["warmup"] for row in second] == [3] * len(PHASES)
    for at in range(0, len(measured), len(PHASES)):
        model = measured[at : at + len(PHASES)]
        assert tuple(row.columns["phase"] for row in model) == PHASES
        assert {(row.status, row.unit, row.n, tuple(row.shape)) for row in model} == {("ok", "ms", 3, (4, 8))}
        parts, step = [row.mean for row in model[:3]], model[3]
        assert min(parts) > 0 and step.mean == pytest.approx(sum(parts))
        assert step.columns["tokens_per_s"] == pytest.approx(4 * 8 / (step.mean / 1e3))
        work = [row.columns["achieved_flop_per_s"] * row.mean for row in model]
        assert np.allclose([work[1] / work[0], work[3] / work[0]], [2, 3]) and np.isnan(work[2])
        assert all(np.isnan(float(row.columns["mfu"])) for row in model)
    assert made("transformer").said([]) == []
    assert unanswered("transformer", measured) == ["2.2b"], "which is about what is compiled"


def test_rows_of_fewer_left_out_are_of_the_same_series(monkeypatch):
    monkeypatch.setattr(transformer, "time_phases", lambda step, n: np.arange(24.0).reshape(6, 4)[:n])
    assert {row.columns["warmup"]: row.mean for row in rows()[3::4]} == {0: 7, 1: 11, 2: 15, 3: 19}


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_flops_of_the_formula_are_those_that_torch_counts(size):
    batch, context = 2, 16
    config = config_of(size, context)
    config._attn_implementation = "eager"
    config.num_hidden_layers = 2
    model = make_model(config, size, "", LANGUAGE_MODEL)
    with FlopCounterMode(display=False) as forward:
        loss = model(input_ids=torch.zeros(batch, context, dtype=torch.long)).logits.sum()
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(loss)
    formula, counted = forward_flops(model, batch, context), forward.get_total_flops()
    rotary = context * config.hidden_size  # positions of one row, as a product of vectors
    assert formula <= counted <= formula + rotary
    assert backward.get_total_flops() == 2 * formula


@pytest.mark.parametrize(("size", "billions"), [("small", 0.129), ("xl-2025", 1.998), ("2.7B", 3.407)])
def test_sizes_are_those_of_the_assignment(size, billions):
    with torch.device("meta"):
        model = make_model(config_of(size, 8), size, "", LANGUAGE_MODEL)
    assert model_step.parameters_of(model) / 1e9 == pytest.approx(billions, abs=1e-3)


def test_a_model_that_cannot_fit_is_a_row_with_its_hand_count(monkeypatch):
    monkeypatch.setattr(model_step, "free_bytes", lambda _: 30_000_000)
    (row,) = rows()
    assert row.status == "oom" and "M parameters x 16 B = 33" in str(row.reason)


def test_what_cannot_be_compiled_is_a_row_that_says_why(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: Mock(side_effect=InvalidCxxCompiler()))
    eager, compiled = (rows(execution=(way,)) for way in ("eager", "compiled"))
    assert {(row.status, row.columns["compiled"]) for row in eager} == {("ok", 0)}
    assert [row.status for row in compiled] == ["skipped"] and "torch.compile: " in str(compiled[0].reason)


def test_compiling_is_outside_of_the_times(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(transformer, "_compiled_in", Mock(side_effect=[7.0]))
    compiled = rows(execution=("compiled",))
    assert {row.columns["compile_s"] for row in compiled} == {7.0}
    assert "2.2b" not in unanswered("transformer", [*rows(), *compiled])


def test_each_phase_has_its_own_time(monkeypatch):
    hands = Hands(monkeypatch)
    takes_ms = {"forward": 1, "backward": 10, "update": 100}
    step = SimpleNamespace(device=CPU, **{name: lambda *_, ms=ms: hands.pass_ms(ms) for name, ms in takes_ms.items()})
    assert transformer.time_phases(step, 2).tolist() == [[1, 10, 100, 111]] * 2


def test_peaks_are_of_known_devices_only():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert np.isnan(peak_flops("cpu", "float32"))


LOGITS_MB = 4 * 16 * 10_000 * 4 / 1e6
"""Four rows of 16 tokens, 10,000 words."""


def benchmark_of(*contexts: int) -> Any:
    return made("memory", contexts=contexts, precisions=("fp32",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Sequence[Row]:
    (folder / "ranks").mkdir()
    benchmark = benchmark_of(8, 16)
    benchmark.folder = folder
    return rows_here(benchmark)


@pytest.fixture(scope="module")
def by(measured: Sequence[Row]) -> Mapping[tuple[int, str], Row]:
    """Peaks by context and phase."""
    found = [row for row in measured if row.columns["quantity"] == "peak"]
    return {(row.columns["context"], row.columns["phase"]): row for row in found}


@pytest.mark.slow
def test_peaks_grow_from_phase_to_phase_and_with_the_context(measured, by):
    assert {(row.status, row.unit) for row in measured} == {("ok", "MB")}
    assert unanswered("memory", measured) == ["1.5c"], "which is about mixed precision"
    assert all(by[8, phase].p50 < by[16, phase].p50 for phase in memory_bench.PHASES)
    for n in (8, 16):
        forward, saved, step = (by[n, phase] for phase in ("forward", "forward_saved", "step"))
        assert forward.p50 < saved.p50 < step.p50
        assert max(forward.columns["saved_mb"], step.columns["saved_mb"]) < 1e-3 < saved.columns["saved_mb"]
        parameters, logits = forward.columns["before_mb"], LOGITS_MB * n / 16
        assert step.columns["before_mb"] == pytest.approx(3 * parameters, rel=1e-3)
        assert forward.p50 == pytest.approx(parameters + 2 * logits, abs=0.1)  # and their softmax


def test_the_residual_stream_is_as_its_formula_says(measured, monkeypatch):
    residual = [row for row in measured if row.columns["quantity"] == "residual"]
    assert [(row.p50, row.reference_error) for row in residual] == [(4 * 4 * n * 128 / 1e6, 0) for n in (8, 16)]
    benchmark = benchmark_of(8)
    monkeypatch.setattr(memory_bench, "residual_bytes", lambda batch, context, width: 2 * batch * context * width)
    assert any("residual stream is off its formula" in line for line in benchmark.said(rows_here(benchmark)))


@pytest.mark.slow
def test_the_largest_tensors_say_where_they_are_made(measured):
    for phase, place in (("forward", "modeling_gpt2.py:"), ("step", "Backward")):
        wanted = {"quantity": "tensor", "context": 16, "phase": phase}
        tensors = [row for row in measured if wanted.items() <= row.columns.items()]
        sizes = [row.p50 for row in tensors]
        assert len(tensors) == 3 and sizes == sorted(sizes, reverse=True) and sizes[0] >= LOGITS_MB
        assert any(place in str(row.columns["stack"]) for row in tensors)


def test_timelines_reach_the_peak(by, folder):
    lines = [json.loads(line) for line in (folder / "ranks" / "timelines.jsonl").read_text().splitlines()]
    found = [(line["context"], line["phase"]) for line in lines]
    assert found == [(n, phase) for n in (8, 16) for phase in memory_bench.PHASES]
    for line in lines:
        row = by[line["context"], line["phase"]]
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
    assert Path(__file__).name in first.stack and "work" in first.stack


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


def test_sums_types_and_times():
    rows = rows_here(made("precision", features=16, samples=4, iterations=2, warmup=1, device="cpu"))
    errors = [row.reference_error or 0.0 for row in rows if row.unit == "1"]
    assert len(errors) == len(SUMS) and errors[0] < 1e-3 < errors[1] and errors[0] < errors[2] == errors[3] < errors[1]
    bits = [row for row in rows if row.unit == "bits"]
    types = {(row.dtype, row.case.split(": ")[1]): row.columns["shown"] for row in bits}
    assert len(types) == len(HALF) * len(PARTS)
    assert all(row.p50 == (16 if row.columns["shown"] in HALF else 32) for row in bits)
    for half in HALF:
        assert types[half, "first layer"] == types[half, "logits"] == half
        assert types[half, "parameters"] == types[half, "gradients"] == "float32"
    times = [row for row in rows if row.unit == "ms"]
    assert [row.dtype for row in times] == ["float32", *HALF] and all(row.n == 2 and row.p50 for row in times)
    assert unanswered("precision", rows) == []

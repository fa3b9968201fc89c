"""A model's step by phase: phases that add up, FLOPs that are counted, warm-up from one series, compilation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from answered import unanswered
from bench_jobs import rows_here
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils.flop_counter import FlopCounterMode

from dynbench.bench import model_step, transformer
from dynbench.bench.base import Row
from dynbench.bench.model_step import ModelStep, build_model, config_of, forward_flops
from dynbench.bench.transformer import PHASES, Transformer, peak_flops
from dynbench.plugins.benchmarks import TransformerOptions
from dynbench.workloads.models import LANGUAGE_MODEL, make_model

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"contexts": (8,), "precisions": ("fp32",), "iterations": 3, "warmup": 3, "device": "cpu"}


def rows(**changes: object) -> list[Row]:
    return rows_here(Transformer(TransformerOptions(**{**SMALL, **changes})))


def test_phases_of_every_model_and_what_warm_up_leaves_out():
    benchmark = Transformer(TransformerOptions(**{**SMALL, "precisions": ("fp32", "bf16")}))
    measured = rows_here(benchmark)
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
    summary = benchmark.summary(measured)
    assert list(summary["half_of_float32"]) == ["tiny 8 bfloat16"] and list(summary["step_by_warmup"]) == list("0123")
    assert len(benchmark.said(measured)) == 2 and benchmark.said([]) == []
    assert unanswered("transformer", measured) == ["2.2b"], "which is about what is compiled"


def test_rows_of_fewer_left_out_are_of_the_same_series(monkeypatch):
    series = np.arange(24.0).reshape(6, 4)
    monkeypatch.setattr(transformer, "time_phases", lambda step, n: series[:n])
    steps = rows()[3::4]
    assert {row.columns["warmup"]: row.mean for row in steps} == {0: 7, 1: 11, 2: 15, 3: 19}


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


def test_sizes_are_those_of_the_assignment():
    found = {}
    for size in ("small", "xl-2025", "2.7B"):
        with torch.device("meta"):
            found[size] = model_step.parameters_of(make_model(config_of(size, 8), size, "", LANGUAGE_MODEL)) / 1e9
    assert found == pytest.approx({"small": 0.129, "xl-2025": 1.998, "2.7B": 3.407}, abs=1e-3)


def test_a_model_that_cannot_fit_is_a_row_with_its_hand_count(monkeypatch):
    monkeypatch.setattr(model_step, "free_bytes", lambda _: 30_000_000)
    (row,) = rows()
    assert row.status == "oom" and "M parameters x 16 B = 33" in str(row.reason)


def test_what_cannot_be_compiled_is_a_row_that_says_why(monkeypatch):
    class Refuses(torch.nn.Module):
        def forward(self, *_: object, **__: object) -> None:
            raise InvalidCxxCompiler()

    monkeypatch.setattr(torch, "compile", lambda model: Refuses())
    eager, compiled = (rows(execution=(way,)) for way in ("eager", "compiled"))
    assert {row.status for row in eager} == {"ok"} and {row.columns["compiled"] for row in eager} == {0}
    assert [row.status for row in compiled] == ["skipped"] and "torch.compile: " in str(compiled[0].reason)


def test_compiling_is_outside_of_the_times(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(transformer, "_compiled_in", lambda step: calls.append(step) or 7.0)
    compiled = rows(execution=("compiled",))
    assert len(calls) == 1 and {row.columns["compile_s"] for row in compiled} == {7.0}
    assert "2.2b" not in unanswered("transformer", [*rows(), *compiled])


def test_a_wrong_phase_order_is_seen(monkeypatch):
    step = ModelStep(build_model("tiny", 8, CPU), 4, 8, "float32")
    called: list[str] = []
    for name in ("forward", "backward", "update"):
        real = getattr(step, name)
        monkeypatch.setattr(step, name, lambda *given, name=name, real=real: called.append(name) or real(*given))
    marks = iter(range(100))

    class Counting:
        def mark(self) -> tuple[int, int]:
            return len(called), next(marks)

        def synchronise(self) -> None: ...

        def elapsed_ms(self, start: tuple[int, int], end: tuple[int, int]) -> float:
            return float(sum({"forward": 1, "backward": 10, "update": 100}[each] for each in called[start[0] : end[0]]))

    monkeypatch.setattr(transformer, "clock_for", lambda _: Counting())
    assert transformer.time_phases(step, 2).tolist() == [[1, 10, 100, 111]] * 2


def test_peaks_are_of_known_devices_only():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert np.isnan(peak_flops("cpu", "float32"))

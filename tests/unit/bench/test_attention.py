"""Attention by length and width: every way right, memory that grows as it should, and what runs out of it."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from answered import unanswered
from bench_jobs import rows_here
from torch import Tensor
from torch._inductor.exc import InvalidCxxCompiler

from dynbench.bench import attention
from dynbench.bench.attention import Attention, Flash, hand_count, plain_bytes
from dynbench.bench.base import Row
from dynbench.bench.measuring import Changes
from dynbench.engine.rank.memory_limit import resident_bytes
from dynbench.plugins.benchmarks import AttentionOptions

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"lengths": (64, 16), "widths": (8,), "iterations": 3, "warmup": 1, "device": "cpu"}
OURS: dict[str, Any] = {"lengths": (64,), "ways": ("flash_torch",)}


def rows(kind: type[Attention], **changes: object) -> list[Row]:
    return rows_here(kind(AttentionOptions(**{**SMALL, **changes})))


def test_every_pass_of_every_way():
    benchmark, measured = Flash(AttentionOptions(**SMALL)), rows(Flash)
    named = [(row.columns["length"], row.columns["way"], row.columns["pass"]) for row in measured]
    ways = ("plain", "sdpa", "flash_torch")
    assert named == [(n, way, each) for n in (16, 64) for way in ways for each in ("forward", "backward", "both")]
    for row in measured:
        assert (row.status, row.unit, row.n, row.shape) == ("ok", "ms", 3, [1, row.columns["length"], 8])
        assert row.p50 > 0 and row.columns["causal"] == 1 and row.reference_error < 1e-5
        products = {"forward": 4, "backward": 10, "both": 14}[row.columns["pass"]]
        flops = products * row.columns["length"] ** 2 * 8 / 2
        assert row.columns["tflop_per_s"] == pytest.approx(flops / (row.p50 * 1e9)) and row.columns["timer"] == "own"
        assert 0 < row.columns["saved_mb"] <= row.columns["peak_mb"]
        assert bool(row.columns["tiles"]) == (row.columns["way"] == "flash_torch")
    ratios = benchmark.summary(measured)["times_of_sdpa"]
    assert list(ratios)[-1] == "both 64 x 8 float32"
    assert all(set(each) == set(ways) and each["sdpa"] == 1 for each in ratios.values())
    assert len(benchmark.said(measured)) == 6 and benchmark.said([]) == []
    assert unanswered("flash", measured) == ["3.4"], "which is about Triton"


def test_plain_memory_is_quadratic_and_as_counted_by_hand():
    measured = rows(Attention, lengths=(128, 256), batch=2, ways=("plain", "sdpa"), iterations=1)
    assert all(row.reference_error < 1e-5 for row in measured)
    found = {(row.columns["way"], row.columns["length"]): row.columns for row in measured}
    assert unanswered("attention", measured) == ["2.2a"], "which is about what is compiled"
    for name in ("saved_mb", "peak_mb"):
        plain, sdpa = (found[way, 256][name] / found[way, 128][name] for way in ("plain", "sdpa"))
        assert plain > 3 > sdpa, name
    peak, counted = (found["plain", 256][name] for name in ("peak_mb", "hand_count_mb"))
    assert counted <= peak < 1.5 * counted
    assert counted == plain_bytes(2, 256, "float32") / 1e6 == 3 * 2 * 256**2 * 4 / 1e6


def test_what_runs_out_of_memory_is_a_row_with_its_hand_count(monkeypatch):
    monkeypatch.setattr(attention, "free_bytes", lambda _: 10_000)
    benchmark = Attention(AttentionOptions(**{**SMALL, "batch": 1}))
    measured = rows_here(benchmark)
    out = [row.case for row in measured if row.status == "oom"]
    assert out == [f"plain {each} 64 x 8 float32" for each in ("forward", "backward")]
    last = benchmark.said(measured)[-1]
    assert "plain forward 64 x 8" in last and hand_count(1, 64, "float32") in last


def test_the_kernel_refuses_what_is_above_the_limit_and_tiles_fit():
    limit_mb = resident_bytes() / 1e6 + 150
    options = {"lengths": (256, 4096), "ways": ("plain", "flash_torch"), "iterations": 1, "batch": 1}
    before = resource.getrlimit(resource.RLIMIT_DATA)
    measured = rows(Attention, **options, memory_limit_mb=limit_mb)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    out = [row for row in measured if row.status == "oom"]
    assert {(row.columns["way"], row.columns["length"]) for row in out} == {("plain", 4096)} and len(measured) == 8
    for row in out:
        assert hand_count(1, 4096, "float32") in str(row.reason) and "67108864 bytes" in str(row.reason)
        assert row.columns["memory_limit_mb"] == limit_mb


@pytest.mark.slow
@pytest.mark.matrix  # as it is, without the compiler, in tests/unit/kernels/test_flash.py
def test_the_backward_pass_that_torch_compiles_is_right_and_quadratic_within():
    measured = rows(Flash, ways=("flash_torch", "flash_compiled"), lengths=(256,), iterations=1)
    assert all(row.status == "ok" and row.reference_error < 1e-5 for row in measured)
    ours, compiled = (row.columns for row in measured if row.columns["pass"] == "backward")
    assert ours["saved_mb"] == compiled["saved_mb"] and compiled["peak_mb"] > 256**2 * 4 / 1e6


@pytest.mark.parametrize("way", ["flex", "sdpa_flash"])
def test_what_needs_a_gpu_is_a_row_that_says_so(way):
    measured = rows(Attention, ways=(way,))
    assert {row.status for row in measured} == {"skipped"} and all(way in str(row.reason) for row in measured)


def no_compiler_of_triton() -> Exception:
    """As Triton says it."""
    build = pytest.importorskip("triton.runtime.build")
    with pytest.raises(RuntimeError) as raised:
        build._build("name", "name.c", "", [], [], [], [])
    return raised.value


@pytest.mark.parametrize("error", [no_compiler_of_triton, InvalidCxxCompiler], ids=["Triton", "torch.compile"])
def test_what_needs_a_compiler_is_a_row_where_there_is_none(error, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda *_: None)

    def attend(*_: Tensor) -> Tensor:
        raise RuntimeError(f"backend='inductor' raised:\nError: {error()}\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(attention, "way_of", lambda *_: attend)
    for row in rows(Flash, **OURS):
        assert row.status == "skipped" and "compiler:" in str(row.reason) and "\n" not in str(row.reason)


def test_a_wrong_way_is_seen(monkeypatch):
    plain = attention.plain_attention
    own = lambda way, causal, device: lambda q, k, v: plain(q, k, v, not causal)  # noqa: E731
    monkeypatch.setattr(attention, "_own", own)
    wrong = {row.columns["way"]: row.reference_error for row in rows(Attention)}
    assert wrong["sdpa"] > 1e-2 and wrong["flash_torch"] < 1e-5


def faulty(fault: Callable[[Tensor], Tensor]) -> SimpleNamespace:
    """Attention whose gradient of the keys goes through a fault."""

    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
        crooked = key.clone()
        if crooked.requires_grad:
            crooked.register_hook(fault)
        return attention.plain_attention(query, crooked, value, is_causal)

    return SimpleNamespace(apply=attend)


def test_a_wrong_gradient_is_seen_where_the_result_is_right(monkeypatch):
    monkeypatch.setitem(attention.OURS, "flash_torch", faulty(lambda key: 2 * key))
    forward, *others = rows(Flash, **OURS)
    assert forward.reference_error < 1e-5 and min(row.reference_error for row in others) > 1e-2
    monkeypatch.setitem(attention.OURS, "flash_torch", faulty(lambda key: torch.full_like(key, torch.nan)))
    forward, *others = found = rows(Flash, **OURS)
    assert forward.columns["not_finite"] == 0
    for row in others:
        assert row.columns["not_finite"] == math.prod(row.shape) and math.isnan(row.reference_error)
    assert sum("NaN or infinite" in line for line in Flash(AttentionOptions(**SMALL)).said(found)) == 2


@pytest.mark.parametrize(("emptying_ms", "count"), [(0.0, 3), (1.5, 20)])
def test_flash_is_timed_by_triton_as_often_as_asked(monkeypatch, emptying_ms, count):
    def do_bench(run: Callable[[], object], warmup: float, rep: float, return_mode: str) -> list[float]:
        assert return_mode == "all" and warmup in (0.5, 0)
        run()
        return [0.5] * max(1, int(rep / (0.5 + emptying_ms)))

    monkeypatch.setattr(attention, "triton_timer", lambda device: do_bench)
    monkeypatch.setattr(attention, "time_calls", lambda run, count, device, prepare=None: np.full(count, 0.25 * 2))
    timed = rows(Flash, **OURS, iterations=count)
    assert {(row.columns["timer"], row.p50) for row in timed} == {("triton", 0.5)}
    assert all(count <= row.n <= count + 1 and row.reference_error < 1e-5 for row in timed)
    own = rows(Attention, **OURS)
    assert [(row.columns["timer"], row.n, row.p50) for row in own] == [("own", 3, 0.5)] * 2


def test_what_is_compiled_runs_backward_once_after_each_forward(monkeypatch):
    passes, options = [], AttentionOptions(**SMALL)

    def backward(result: Tensor, *, again: bool = False) -> None:
        passes.append((each, again))

    monkeypatch.setattr(attention, "triton_timer", lambda device: lambda run, **_: [run() or 1.0])
    for each, timer in (("forward", "triton"), ("backward", "own"), ("both", "triton")):
        one = partial(attention.pass_times, each, lambda: torch.ones(1), backward, options, CPU, "triton")
        assert [one(keeps_graph=keeps)[1] for keeps in (True, False)] == ["triton", timer]
    assert {each for each, again in passes if again} == {"backward"}


def test_tritons_timer_needs_a_gpu_and_triton(monkeypatch):
    module, gpu = ModuleType("triton.testing"), torch.device("cuda")
    module.__dict__["do_bench"] = timer = lambda: None
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    for there, device, found in ((module, gpu, timer), (module, CPU, None), (None, gpu, None)):
        monkeypatch.setitem(sys.modules, "triton.testing", there)
        assert attention.triton_timer(device) is found


def test_memory_on_a_gpu_leaves_out_what_is_compiled_and_tuned_first(monkeypatch):
    done: list[str] = []
    nothing = Changes(0, 0, np.zeros(1), np.zeros(1, dtype=np.int64))
    monkeypatch.setattr(attention, "watch", lambda work, *_, **__: (done.append("watched"), work(), nothing)[1:])
    attention.with_memory(lambda: done.append("forward"), lambda _: done.append("backward"), torch.device("cuda"))
    assert done == ["forward", "backward", "watched", "forward", "watched", "backward"]


def test_flex_makes_its_mask_once(monkeypatch):
    from torch.nn.attention import flex_attention as torchs

    made: list[int] = []
    monkeypatch.setattr(torchs, "create_block_mask", lambda f, b, h, n, m, device: made.append(n))
    monkeypatch.setattr(torch, "compile", lambda function: lambda q, k, v, block_mask: v)
    attend = attention.way_of("flex", True, torch.device("cuda"))
    state = torch.ones(1, 6, 2)
    for _ in range(3):
        assert torch.equal(attend(state, state, state), state)
    assert made == [6]

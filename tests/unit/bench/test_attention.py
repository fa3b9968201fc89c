"""Attention by length, width and packed row: every way right, memory that grows as it should, what runs out of it."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from answered import unanswered
from bench_jobs import made, rows_here
from torch import Tensor
from torch._inductor.exc import InvalidCxxCompiler

from dynbench.bench import attention, packed_attention
from dynbench.bench.attention import hand_count, plain_bytes
from dynbench.bench.base import Row
from dynbench.bench.measuring import Changes
from dynbench.bench.packed_attention import WAYS, row_lengths
from dynbench.engine.rank.memory_limit import resident_bytes

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"lengths": (64, 16), "widths": (8,), "iterations": 3, "warmup": 1, "device": "cpu"}
OURS: dict[str, Any] = {"lengths": (64,), "ways": ("flash_torch",)}


def rows(name: str, **changes: object) -> list[Row]:
    return rows_here(made(name, **{**SMALL, **changes}))


def test_every_pass_of_every_way():
    measured = rows("flash")
    ways, products = ("plain", "sdpa", "flash_torch"), {"forward": 4, "backward": 10, "both": 14}
    for row, (n, way, each) in zip(measured, product((16, 64), ways, products), strict=True):
        columns = row.columns
        assert (row.status, row.unit, row.n, row.shape) == ("ok", "ms", 3, [1, n, 8])
        assert (columns["length"], columns["way"], columns["pass"]) == (n, way, each)
        assert row.p50 > 0 and columns["causal"] == 1 and row.reference_error < 1e-5
        assert columns["tflop_per_s"] == pytest.approx(products[each] * n**2 * 8 / 2 / (row.p50 * 1e9))
        assert 0 < columns["saved_mb"] <= columns["peak_mb"] and bool(columns["tiles"]) == (way == "flash_torch")
    assert made("flash").said([]) == []
    assert unanswered("flash", measured) == ["3.4"], "which is about Triton"


def test_plain_memory_is_quadratic_and_as_counted_by_hand():
    measured = rows("attention", lengths=(128, 256), batch=2, ways=("plain", "sdpa"), iterations=1)
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
    measured = rows("attention", batch=1)
    out = [row.case for row in measured if row.status == "oom"]
    assert out == [f"plain {each} 64 x 8 float32" for each in ("forward", "backward")]
    assert hand_count(1, 64, "float32") in made("attention").said(measured)[-1]


def test_the_kernel_refuses_what_is_above_the_limit_and_tiles_fit():
    limit_mb = resident_bytes() / 1e6 + 150
    options = {"lengths": (256, 4096), "ways": ("plain", "flash_torch"), "iterations": 1, "batch": 1}
    before = resource.getrlimit(resource.RLIMIT_DATA)
    measured = rows("attention", **options, memory_limit_mb=limit_mb)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    out = [row for row in measured if row.status == "oom"]
    assert {(row.columns["way"], row.columns["length"]) for row in out} == {("plain", 4096)} and len(measured) == 8
    for row in out:
        assert hand_count(1, 4096, "float32") in str(row.reason) and "67108864 bytes" in str(row.reason)
        assert row.columns["memory_limit_mb"] == limit_mb


@pytest.mark.slow
@pytest.mark.matrix  # as it is, without the compiler, in tests/unit/kernels/test_flash.py
def test_the_backward_pass_that_torch_compiles_is_right_and_quadratic_within():
    measured = rows("flash", ways=("flash_torch", "flash_compiled"), lengths=(256,), iterations=1)
    assert all(row.status == "ok" and row.reference_error < 1e-5 for row in measured)
    ours, compiled = (row.columns for row in measured if row.columns["pass"] == "backward")
    assert ours["saved_mb"] == compiled["saved_mb"] and compiled["peak_mb"] > 256**2 * 4 / 1e6


@pytest.mark.parametrize("way", ["flex", "sdpa_flash"])
def test_what_needs_a_gpu_is_a_row_that_says_so(way):
    measured = rows("attention", ways=(way,))
    assert {row.status for row in measured} == {"skipped"} and all(way in str(row.reason) for row in measured)


def of_triton(*_: Tensor) -> None:
    pytest.importorskip("triton.runtime.build")._build("name", "name.c", "", [], [], [], [])


def of_torch(*_: Tensor) -> None:
    raise RuntimeError(f"backend='inductor' raised:\nError: {InvalidCxxCompiler()}\n\nSet TORCHDYNAMO_VERBOSE=1")


@pytest.mark.parametrize("attend", [of_triton, of_torch])
def test_what_needs_a_compiler_is_a_row_where_there_is_none(attend, monkeypatch):
    """In the words of Triton and of torch."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda *_: None)
    monkeypatch.setattr(attention, "way_of", lambda *_: attend)
    for row in rows("flash", **OURS):
        assert row.status == "skipped" and "compiler:" in str(row.reason) and "\n" not in str(row.reason)


Apply = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def with_gradient(fault: Callable[[Tensor], Tensor]) -> Apply:
    """Attention whose gradient of the keys goes through a fault."""

    def apply(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
        crooked = key.clone()
        if crooked.requires_grad:
            crooked.register_hook(fault)
        return attention.plain_attention(query, crooked, value, is_causal)

    return apply


@pytest.mark.parametrize(
    ("apply", "right", "finite"),
    [
        (lambda q, k, v, causal: attention.plain_attention(q, k, v, not causal), [], True),
        (with_gradient(lambda key: 2 * key), ["forward"], True),
        (with_gradient(lambda key: torch.full_like(key, torch.nan)), ["forward"], False),
    ],
    ids=["result", "gradient", "NaN"],
)
def test_what_is_wrong_is_seen_in_the_passes_that_have_it(monkeypatch, apply, right, finite):
    monkeypatch.setitem(attention.OURS, "flash_torch", SimpleNamespace(apply=apply))
    found = rows("flash", **OURS)
    assert [row.columns["pass"] for row in found if row.reference_error < 1e-2] == right
    of_wrong = {row.columns["not_finite"] for row in found if row.columns["pass"] not in right}
    assert of_wrong == ({0} if finite else {math.prod(found[0].shape)})
    assert sum("NaN or infinite" in line for line in made("flash").said(found)) == 2 * (not finite)


@pytest.mark.parametrize(("emptying_ms", "count"), [(0.0, 3), (1.5, 20)])
@pytest.mark.parametrize(("way", "backward"), [("flash_torch", "triton"), ("compiled", "own")])
def test_flash_is_timed_by_triton_as_often_as_asked(monkeypatch, way, backward, emptying_ms, count):
    """But for the backward pass of what is compiled, which runs once after each forward."""

    def do_bench(run: Callable[[], object], warmup: float, rep: float, return_mode: str) -> list[float]:
        assert return_mode == "all" and warmup in (0.5, 0)
        run()
        return [0.5] * max(1, int(rep / (0.5 + emptying_ms)))

    calls = attention.time_calls
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(attention, "triton_timer", lambda device: do_bench)
    monkeypatch.setattr(attention, "time_calls", lambda *given: 0 * calls(*given) + 0.5)
    timed = rows("flash", lengths=(64,), ways=(way,), iterations=count)
    assert [row.columns["timer"] for row in timed] == ["triton", backward, "triton"]
    assert all(count <= row.n <= count + 1 and row.p50 == 0.5 and row.reference_error < 1e-5 for row in timed)
    assert [(row.columns["timer"], row.n) for row in rows("attention", **OURS)] == [("own", 3)] * 2


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


def packed_rows() -> list[Row]:
    sizes = {"tokens": (48, 32), "heads": 2, "channels": 8, "mean": 6, "longest": 12}
    return rows_here(made("packed_attention", **sizes, iterations=3, warmup=1, device="cpu"))


def test_every_way_gives_attention_of_each_sample_alone():
    """Ratios of the ways, and what is said of them, are among the goldens."""
    measured = packed_rows()
    assert [(row.columns["tokens"], row.columns["way"]) for row in measured] == [*product((32, 48), WAYS)]
    for row in measured:
        assert (row.n, row.unit) == (3, "ms") and row.p50 is not None and row.p50 > 0
        assert row.reference_error is None if row.columns["way"] == "linear" else row.reference_error < 1e-6
    assert made("packed_attention").said([]) == []


def test_a_way_that_mixes_samples_is_seen(monkeypatch):
    attend = packed_attention.attend

    def mixing(query, key, value, boundaries, *, causal):
        return attend(query, key, value, packed_attention.Boundaries((boundaries.tokens,)), causal=causal)

    monkeypatch.setattr(packed_attention, "attend", mixing)
    wrong = {row.columns["way"]: row.reference_error for row in packed_rows() if row.columns["tokens"] == 48}
    assert wrong["by_length"] > 1e-2 and wrong["repadded"] > 1e-2 and wrong["block_mask"] < 1e-6


@pytest.mark.parametrize("tokens", [1, 7, 256, 4096])
def test_a_row_has_the_tokens_asked_for(tokens):
    lengths = row_lengths(tokens, 24, 256)
    assert sum(lengths) == tokens and lengths == sorted(lengths) and lengths[0] >= 1 and lengths[-1] <= 256
    assert lengths == row_lengths(tokens, 24, 256)

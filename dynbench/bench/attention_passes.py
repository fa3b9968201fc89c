"""One pass of attention, by one of several ways, as it is timed, and the memory that forward and backward take."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile

from dynbench.bench.allocations import free_bytes
from dynbench.bench.attention import hand_count, pass_flops, plain_bytes
from dynbench.bench.attention_timer import pass_times
from dynbench.bench.base import Case, Measured, NotMeasured
from dynbench.errors import UsageError
from dynbench.kernels import FlashAttentionTorch, FlashAttentionTriton
from dynbench.kernels.flash_tiles import tiles_for
from dynbench.plugins.benchmarks import AttentionOptions
from dynbench.units import format_bytes, mb

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Gradients = tuple[Tensor, ...]
OURS: dict[str, Any] = {"flash_torch": FlashAttentionTorch, "flash_triton": FlashAttentionTriton}
BACK_ENDS = {
    "sdpa": None,
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
}
COMPILED = ("compiled", "flex")
"""Ways whose backward pass runs once after each forward: what torch compiles gives memory back as it goes."""
LACKS = {
    "No available kernel": "torch has no such kernel for this",
    "Failed to find C compiler": "Triton needs a C compiler",
    "No working C++ compiler found": "torch.compile needs a C++ compiler",
}
"""What is missing here, by what torch and Triton say."""
LONGEST_CHECKED = 2048
"""Beyond, the result in float64 takes longer to compute than the case."""


def measure_pass(case: Case, options: AttentionOptions, device: torch.device, timer: str = "own") -> Measured:
    """Time the iterations of a pass, after one of both that memory is counted in.

    Args:
        case: its way, pass, shape and type.
        options: how often.
        device: where to run.
        timer: `own`, or `triton` for Triton's where that runs.

    Raises:
        NotMeasured: this way cannot be run here, or needs more memory by hand than there is.
    """
    way, each, causal = str(case.columns["way"]), str(case.columns["pass"]), bool(case.columns["causal"])
    batch, length, channels = case.shape
    free = free_bytes(device)
    if way in ("plain", "compiled") and plain_bytes(batch, length, case.dtype) > free:
        raise NotMeasured(f"{hand_count(batch, length, case.dtype)}, and {format_bytes(free)} are free", "oom")
    drawn = torch.Generator().manual_seed(0)
    shape, dtype = (batch, length, channels), getattr(torch, case.dtype)
    *states, gradient = (torch.randn(shape, generator=drawn).to(device, dtype) for _ in range(4))
    query, key, value = (state.requires_grad_() for state in states)
    attend = way_of(way, causal, device)

    def forward() -> Tensor:
        return attend(query, key, value)

    def backward(result: Tensor, *, again: bool = False) -> Gradients:
        return torch.autograd.grad(result, (query, key, value), gradient, retain_graph=again)

    try:
        saved, peak = with_memory(forward, backward, device)
    except (UsageError, NotImplementedError) as error:  # ours refuse a shape or type, torch's back ends a device
        raise NotMeasured(str(error).splitlines()[0]) from error
    except RuntimeError as error:
        lines = str(error).splitlines()
        lacking = [f"{what}: {line.strip()}" for said, what in LACKS.items() for line in lines if said in line]
        if not lacking:
            raise
        raise NotMeasured(lacking[0]) from error
    times, timed_by = pass_times(each, forward, backward, options, device, timer, keeps_graph=way not in COMPILED)
    columns: dict[str, float | int | str] = {
        "tflop_per_s": pass_flops(case) / float(np.median(times)) / 1e9,
        "timer": timed_by,
        "saved_mb": mb(saved),
        "peak_mb": mb(peak),
        "tiles": _tiles(way, batch, device),
    }
    if length > LONGEST_CHECKED:
        return Measured(times, columns)
    result = forward()
    found = (*((result,) if each != "backward" else ()), *(backward(result) if each != "forward" else ()))
    columns["not_finite"] = sum(int((~one.isfinite()).sum()) for one in found)
    return Measured(times, columns, _error(each, found, (query, key, value), gradient, causal))


def way_of(way: str, causal: bool, device: torch.device) -> Attend:
    """What computes attention of query, key and value, [batch, n, d].

    Args:
        way: its name in the options.
        causal: whether query i sees the keys up to i only.
        device: where.

    Raises:
        NotMeasured: it does not run there.
    """
    if way in OURS:
        return lambda query, key, value: OURS[way].apply(query, key, value, causal)
    if way in BACK_ENDS:
        return _own(way, causal, device)
    if way == "flex":
        return _flex(causal, device)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return plain_attention(query, key, value, causal)

    return torch.compile(plain) if way == "compiled" else plain


def plain_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V as it is written, all scores at once."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ value


def _own(way: str, causal: bool, device: torch.device) -> Attend:
    back_end = BACK_ENDS[way]
    if back_end is not None and device.type == "cpu":
        raise NotMeasured(f"{way}: this back end of torch needs a GPU")

    def own(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(1) for each in (query, key, value))
        with nullcontext() if back_end is None else sdpa_kernel(back_end):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(1)

    return own


def _flex(causal: bool, device: torch.device) -> Attend:
    if device.type == "cpu":
        raise NotMeasured("flex: torch's FlexAttention has no backward pass on CPUs")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)

    @cache
    def mask_of(n: int) -> Any:
        """Made at the first pass, which is not timed, as a model makes it once for all its layers."""
        return create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=str(device)) if causal else None

    def flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(1) for each in (query, key, value))
        attended: Tensor = compiled(q, k, v, block_mask=mask_of(query.shape[1]))
        return attended.squeeze(1)

    return flex


def _tiles(way: str, batch: int, device: torch.device) -> str:
    if way == "flash_torch":
        tiles = tiles_for(batch, device)
        return f"{tiles.queries} x {tiles.keys}"
    if way == "flash_triton":
        from dynbench.kernels.flash_triton_launch import chosen_tiles

        return chosen_tiles()
    return ""


def _error(each: str, found: Gradients, states: Gradients, gradient: Tensor, causal: bool) -> float:
    """Largest difference from the same in float64, of the first row of the batch: result, gradients, or all of them.

    NaN where any of them is.
    """
    exact = [state[:1].detach().double().requires_grad_() for state in states]
    result = plain_attention(exact[0], exact[1], exact[2], causal)
    gradients = torch.autograd.grad(result, exact, gradient[:1].double()) if each != "forward" else ()
    known = (*((result,) if each != "backward" else ()), *gradients)
    furthest = [(one[:1] - other).detach().abs().max() for one, other in zip(found, known, strict=True)]
    return float(torch.stack(furthest).max())


def with_memory(
    forward: Callable[[], Tensor], backward: Callable[[Tensor], object], device: torch.device
) -> tuple[int, int]:
    """The bytes that are held between the passes, and the most at once, beside those held before.

    On CPUs the allocations of torch's profiler are summed up. On GPUs a first time of both does not count, in which
    kernels are compiled and tuned: Triton's tuner holds 256 MB meanwhile.
    """
    if device.type == "cuda":
        backward(forward())
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = forward()
        saved = torch.cuda.memory_allocated(device) - before
        backward(result)
        return saved, torch.cuda.max_memory_allocated(device) - before
    with profile(profile_memory=True) as first:
        result = forward()
    saved, most = _allocated(first)
    with profile(profile_memory=True) as second:
        backward(result)
    return saved, max(most, saved + _allocated(second)[1])


def _allocated(profiler: profile) -> tuple[int, int]:
    """Bytes at the end and at most, of what was allocated and given back while it watched."""
    assert profiler.profiler is not None, "it has watched"
    results: Any = profiler.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    held = np.cumsum([0, *(nbytes for _, nbytes in sorted(changes, key=lambda change: change[0]))])
    return int(held[-1]), int(held.max())

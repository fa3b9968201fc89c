"""Attention by plain PyTorch, by torch's own kernels and by ours: time of each pass, and memory, by length and width.

`attention` has the batch and the mask of a model without heads; `flash` has one row and a causal mask, as kernels are
compared. Plain attention keeps the weights of all queries and keys for its backward pass, which is what runs out of
memory first; how much that is by hand stands beside what was measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynbench.bench.base import ELEMENT_BYTES, Benchmark, Case, Columns, Measured, NotMeasured, Row, ratios, titled
from dynbench.bench.measuring import free_bytes, time_calls, watch
from dynbench.engine.failure import is_out_of_memory
from dynbench.engine.rank.memory_limit import limited
from dynbench.errors import UsageError
from dynbench.kernels import FlashAttentionCompiled, FlashAttentionTorch, FlashAttentionTriton
from dynbench.kernels.flash_torch import tiles_for
from dynbench.plugins.benchmarks import AttentionOptions, TimedOptions
from dynbench.units import BYTES_PER_MB, format_bytes, mb

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Gradients = tuple[Tensor, ...]
Times = NDArray[np.float64]
Timer = Callable[..., Any]
Backward = Callable[..., object]
SQUARES = 3
"""Tensors of all queries by all keys that plain attention holds at once, in its backward pass: the weights that forward
kept, their gradients, and those of the scores."""
PASS_FLOPS = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""FLOPs of a pass, in those of forward: backward has five products of matrices for its two, as it computes scores anew.
They are counted alike for every way, whatever it computes, so that TFLOP/s compare as times do."""
OURS: dict[str, Any] = {
    "flash_torch": FlashAttentionTorch,
    "flash_compiled": FlashAttentionCompiled,
    "flash_triton": FlashAttentionTriton,
}
QUADRATIC = ("plain", "compiled", "flash_compiled")
"""Ways that have all queries by all keys at once, in a pass at least."""
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


class Attention(Benchmark):
    """Forward and backward of every way at every shape."""

    options: AttentionOptions
    passes: ClassVar[Sequence[str]] = ("forward", "backward")
    timer: ClassVar[str] = "own"
    """Whose clock: `own` times the iterations of the options; `triton` is Triton's on a GPU, and else `own` too."""
    own: ClassVar[Mapping[str, Any]] = {"lengths": (256, 1024), "widths": (16, 64), "batch": 8, "causal": False}
    """What null options are."""
    headers: ClassVar = titled(
        *("length", "channels", "dtype", "way", "pass", "p50", "sd", "tflop_per_s", "saved_mb", "peak_mb", "tiles"),
        "reference_error",
        channels="d",
        tflop_per_s="TFLOP/s",
        saved_mb="before backward (MB)",
        peak_mb="peak (MB)",
    )

    def __init__(self, options: AttentionOptions) -> None:
        super().__init__(options)
        chosen = {**self.own, **options.model_dump(include=set(self.own), exclude_none=True)}
        self.lengths, self.widths = (sorted(set(chosen[name])) for name in ("lengths", "widths"))
        self.batch, self.causal = int(chosen["batch"]), bool(chosen["causal"])

    def cases(self) -> Sequence[Case]:
        """Every pass of every way at every shape, the shortest first."""
        cases, batch = [], self.batch
        shapes = product(self.lengths, self.widths, self.options.dtypes, self.options.ways, self.passes)
        for length, channels, dtype, way, each in shapes:
            columns: Columns = {"way": way, "pass": each, "batch": batch, "length": length, "channels": channels}
            columns |= {"causal": int(self.causal), "hand_count_mb": mb(plain_bytes(batch, length, dtype))}
            if self.options.memory_limit_mb is not None:
                columns["memory_limit_mb"] = self.options.memory_limit_mb
            name = f"{way} {each} {length} x {channels} {dtype}"
            cases.append(Case(name, [batch, length, channels], dtype, columns))
        return cases

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one pass, after one of both that memory is counted in."""
        way, each, causal = str(case.columns["way"]), str(case.columns["pass"]), bool(case.columns["causal"])
        batch, length, channels = case.shape
        device = context.device
        free = free_bytes(device)
        by_hand, limit_mb = hand_count(batch, length, case.dtype), self.options.memory_limit_mb
        if limit_mb is None and way in QUADRATIC and plain_bytes(batch, length, case.dtype) > free:
            raise NotMeasured(f"{by_hand}, and {format_bytes(free)} are free", "oom")
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
            with limited(None if limit_mb is None or device.type == "cuda" else round(limit_mb * BYTES_PER_MB)):
                saved, peak = with_memory(forward, backward, device)
        except (UsageError, NotImplementedError) as error:  # ours refuse a shape or type, torch's back ends a device
            raise NotMeasured(str(error).splitlines()[0]) from error
        except RuntimeError as error:
            lines = str(error).splitlines()
            if limit_mb is not None and is_out_of_memory(error):
                raise NotMeasured(f"{by_hand}, and the process has {limit_mb:g} MB: {lines[0]}", "oom") from error
            lacking = [f"{what}: {line.strip()}" for said, what in LACKS.items() for line in lines if said in line]
            if not lacking:
                raise
            raise NotMeasured(lacking[0]) from error
        times, timed_by = pass_times(
            each, forward, backward, self.options, device, self.timer, keeps_graph=way not in COMPILED
        )
        columns: Columns = {
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

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """How many times as long as torch's own attention each way takes, and its memory over that of the plain one."""

        def name(row: Row) -> str:
            return f"{row.columns['pass']} {row.columns['length']} x {row.columns['channels']} {row.dtype}"

        return {
            key: ratios(rows, name, lambda row: str(row.columns["way"]), of, value)
            for key, of, value in (("times_of_sdpa", "sdpa", "p50"), ("memory_of_plain", "plain", "peak_mb"))
        }

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same at the longest, and for each way the smallest shape that ran out of memory."""
        lines: list[str] = []
        for name, shown in (("times_of_sdpa", "times of torch's own"), ("memory_of_plain", "memory, of that of plain")):
            last = [*self.summary(rows)[name].items()][-len(self.passes) :]
            lines += [f"{key}: {shown}: {_listed(each)}" for key, each in last]
        lines += [
            f"{row.case}: wrong, {wrong:,} values are NaN or infinite; its times mean nothing"
            for row in rows
            if (wrong := row.columns.get("not_finite"))
        ]
        for way in self.options.ways:
            row = next((row for row in rows if row.columns["way"] == way and row.status == "oom"), None)
            if row is not None:
                lines.append(f"{way} first runs out of memory at {row.case}: {row.reason}")
        return lines


class Flash(Attention):
    """Forward, backward, and both in one, on a GPU by the timer that kernels are published with."""

    passes = ("forward", "backward", "both")
    timer = "triton"
    own: ClassVar = {"lengths": (128, 512, 2048), "widths": (64,), "batch": 1, "causal": True}


def plain_bytes(batch: int, length: int, dtype: str) -> int:
    """What plain attention needs at once, forward and backward, of what is quadratic in the length."""
    return SQUARES * batch * length * length * ELEMENT_BYTES[dtype]


def pass_flops(case: Case) -> float:
    """FLOPs of a pass as flash-attention's own benchmark counts them: `4 b n² d` forward, half of that where causal."""
    batch, length, channels = case.shape
    forward = 4 * batch * length**2 * channels / (2 if case.columns["causal"] else 1)
    return forward * PASS_FLOPS[str(case.columns["pass"])]


def hand_count(batch: int, length: int, dtype: str) -> str:
    """The same, with where it comes from."""
    size = ELEMENT_BYTES[dtype]
    total = format_bytes(plain_bytes(batch, length, dtype))
    return f"{SQUARES} x {batch} x {length}² x {size} B = {total} for weights, their gradients and those of the scores"


def _listed(by_way: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {ratio:.3g}" for way, ratio in by_way.items())


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
    if way in ("flash_torch", "flash_compiled"):
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
    """The bytes in use between the passes, and the most at once, beside those in use before.

    On GPUs a first time of both does not count, in which kernels are compiled and tuned: Triton's tuner holds 256 MB
    meanwhile.
    """
    if device.type == "cuda":
        backward(forward())
    result, first = watch(forward, device, history=False)
    _, second = watch(lambda: backward(result), device, history=False)
    return first.after, max(first.most, first.after + second.most)


def pass_times(
    each: str,
    forward: Callable[[], Tensor],
    backward: Backward,
    options: TimedOptions,
    device: torch.device,
    timer: str,
    *,
    keeps_graph: bool,
) -> tuple[Times, str]:
    """Milliseconds of every iteration, shape [n], and whose timer measured them, `own` or `triton`.

    Args:
        each: `forward`, `backward` or `both`.
        forward: the pass; its result has what `backward` needs.
        backward: from that result; with `again`, what the pass needs is kept for another.
        options: iterations, and those before them that do not count; of Triton's timer at least as many.
        device: where they run.
        timer: which is wanted.
        keeps_graph: whether the backward pass of a result can be run more than once, as Triton's timer does.
    """
    do_bench = triton_timer(device) if timer == "triton" and (keeps_graph or each != "backward") else None
    run: Callable[[], object] = forward if each == "forward" else lambda: backward(forward())
    if do_bench is None:
        count, ready = options.warmup + options.iterations, deque[Tensor]()
        if each == "backward":  # has a forward pass of its own, which is not timed
            times = time_calls(lambda: backward(ready.pop()), count, device, lambda: ready.append(forward()))
        else:
            times = time_calls(run, count, device)
        return times[options.warmup :], "own"
    if each == "backward":
        run = partial(backward, forward(), again=True)
    ms = float(time_calls(run, 2, device)[-1])
    rep = options.iterations * ms
    found = list(do_bench(run, warmup=options.warmup * ms, rep=rep, return_mode="all"))
    each_ms = rep / len(found)  # as it reckons, with what emptying the cache takes
    while (missing := options.iterations - len(found)) > 0:
        found += do_bench(run, warmup=0, rep=missing * each_ms, return_mode="all")
    return np.array(found), "triton"


def triton_timer(device: torch.device) -> Timer | None:
    """Triton's `do_bench`, which empties the L2 cache before each iteration and waits for none; None without either.

    It takes how long to run in ms, and makes at least one iteration.
    """
    if device.type != "cuda":
        return None
    try:
        from triton.testing import do_bench
    except ImportError:
        return None
    found: Timer = do_bench
    return found

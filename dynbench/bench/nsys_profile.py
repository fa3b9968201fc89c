"""The kernels of each phase of a language model's step, as torch's profiler sees them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from dynbench.bench.base import Case, Measured
from dynbench.bench.model_step import ModelStep, build_model
from dynbench.bench.nsys import SOFTMAX_FLOPS
from dynbench.clock import clock_for
from dynbench.plugins.benchmarks import NsysOptions

ATTENTION = "dynbench_ranges"
"""Its name in transformers' attention interface."""
PREFIX = "dynbench::"
PROFILED = 5
"""Steps that are profiled, at most: what the profiler writes down takes longer than they do."""
RANGES = ("scores", "mask", "softmax", "values")
"""Parts of attention."""
TOGETHER = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "forward and backward": ("forward", "backward"),
    "step": ("forward", "backward", "optimizer"),
}
"""What is told of, and the phases that are profiled for it."""
KINDS = {
    "matmul": r"(^|:|_)(mm|addmm|bmm|baddbmm)(_|$)|mkldnn_linear|gemm|nvjet|cutlass|xmma",
    "loss": r"log_?softmax|nll_loss|cross_entropy",
    "softmax": r"softmax",
    "norm": r"layer_?norm|rms_?norm",
    "optimizer": r"_foreach|adam|multi_tensor|optimizer",
    "copy": r"copy|clone|contiguous|memcpy|memset|::cat$|catarray|fill|zero",
    "embedding": r"embedding|index|gather|scatter",
    "elementwise": r"add|mul|div|sub|pow|sqrt|silu|gelu|neg|mask|where|sin|cos|exp|mean|sum|tanh|elementwise|reduce",
}
"""Of kernels by name, the first that it has; of none: `other`."""

Found = Mapping[str, tuple[float, int]]
"""Milliseconds and calls by kernel or range."""


def kind_of(kernel: str) -> str:
    """Which of `KINDS` a kernel is of."""
    name = kernel.lower()
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")


@contextmanager
def span(name: str) -> Iterator[None]:
    """A range in the profile of torch, and in that of nsys where CUDA is."""
    nvtx: Any = torch.cuda.nvtx if torch.cuda.is_available() else None
    with record_function(PREFIX + name):
        if nvtx is not None:
            nvtx.range_push(name)
        try:
            yield
        finally:
            if nvtx is not None:
                nvtx.range_pop()


def ranged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention of [batch, heads, n, channels] as it is written, each part in a range of its own."""
    n = query.shape[-2]
    with span("scores"):
        scores = query @ key.transpose(-1, -2)
    with span("mask"):
        later = torch.ones(n, n, dtype=torch.bool, device=query.device).triu(1)
        scaled = scores * (1 / math.sqrt(query.shape[-1]) if scaling is None else scaling)
        masked = scaled.masked_fill(later, -torch.inf)
    with span("softmax"):
        weights = masked.softmax(-1)
    with span("values"):
        result = weights @ value
    return result.transpose(1, 2).contiguous(), None


def ranged_model(size: str, context: int, device: torch.device) -> nn.Module:
    """One of our models with that attention.

    Raises:
        NotMeasured: memory for it is not there.
    """
    from transformers import AttentionInterface, PreTrainedModel

    AttentionInterface.register(ATTENTION, ranged_attention)
    model = build_model(size, context, device)
    assert isinstance(model, PreTrainedModel)
    model.set_attn_implementation(ATTENTION)
    return model


class Phases:
    """The phases of a step, to be run in their order.

    Args:
        step: of the model.
    """

    def __init__(self, step: ModelStep) -> None:
        self._step, self._loss = step, torch.empty(0)
        self.by_name: Mapping[str, Callable[[], None]] = {
            "inference": self._inference,
            "forward": self._forward,
            "backward": lambda: step.backward(self._loss),
            "optimizer": step.update,
        }

    def _inference(self) -> None:
        with torch.no_grad():
            self._step.forward()

    def _forward(self) -> None:
        self._loss = self._step.forward()


def profile_phases(case: Case, options: NsysOptions, device: torch.device) -> list[Measured]:
    """Timer, kernels, kinds and ranges of every phase.

    Args:
        case: size and context.
        options: how often, and of how many kernels.
        device: where to run.

    Raises:
        NotMeasured: memory for the model is not there.
    """
    batch, context = case.shape
    model = ranged_model(str(case.columns["size"]), context, device)
    phases, clock = Phases(ModelStep(model, batch, context, case.dtype)), clock_for(device)
    timed: dict[str, list[float]] = defaultdict(list)
    profiled: dict[str, list[Found]] = defaultdict(list)
    for _ in range(options.warmup):
        for run in phases.by_name.values():
            run()
    for _ in range(options.iterations):
        for phase, run in phases.by_name.items():
            clock.synchronise()
            start = clock.mark()
            run()
            end = clock.mark()
            clock.synchronise()
            timed[phase].append(clock.elapsed_ms(start, end))
    for _ in range(min(options.iterations, PROFILED)):
        for phase, each in _profiled(phases, device).items():
            profiled[phase].append(each)
    flops = range_flops(model, batch, context)
    found: list[Measured] = []
    for title, names in TOGETHER.items():
        timer = np.sum([timed[name] for name in names], axis=0)
        passes = [_sum(parts) for parts in zip(*(profiled[name] for name in names), strict=True)]
        found += _parts(title, timer, passes, options.kernels, flops)
    return found


def _profiled(phases: Phases, device: torch.device) -> dict[str, Found]:
    """What one step spends in each kernel and range, by phase: each ends before the next begins."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        for phase, run in phases.by_name.items():
            with span(phase):
                run()
                if on_gpu:
                    torch.cuda.synchronize(device)
    events: list[Any] = list(profiler.events() or ())
    of_host = [event for event in events if event.device_type.name == "CPU"]
    kernels = [event for event in events if event.device_type.name == "CUDA"] if on_gpu else of_host
    began = {event.name.removeprefix(PREFIX): event.time_range for event in of_host if event.name.startswith(PREFIX)}
    spans = {phase: (began[phase].start, began[phase].end) for phase in phases.by_name}
    found: dict[str, dict[str, tuple[float, int]]] = {phase: {} for phase in spans}

    def add(event: Any, us: float) -> None:
        for phase, (start, end) in spans.items():
            if us > 0 and start <= event.time_range.start <= end:
                ms, calls = found[phase].get(event.name, (0.0, 0))
                found[phase][event.name] = (ms + us / 1e3, calls + 1)

    for event in of_host:
        if event.name.startswith(PREFIX) and event.name.removeprefix(PREFIX) in RANGES:
            add(event, event.device_time_total if on_gpu else event.cpu_time_total)
    for event in kernels:
        is_range = event.name.startswith(PREFIX) or (on_gpu and event.name.startswith("Optimizer."))
        if not is_range:
            add(event, event.self_device_time_total if on_gpu else event.self_cpu_time_total)
    return {phase: dict(each) for phase, each in found.items()}


def _sum(parts: Sequence[Found]) -> Found:
    ms, calls = Counter[str](), Counter[str]()
    for part in parts:
        for name, (each, count) in part.items():
            ms[name] += each  # type: ignore[assignment]  # counters of times
            calls[name] += count
    return {name: (float(ms[name]), calls[name]) for name in ms}


def range_flops(model: nn.Module, batch: int, context: int) -> dict[str, int]:
    """FLOPs of the parts of attention, over all layers of a forward pass: nothing is left out for the mask."""
    config: Any = model.config
    scores = batch * config.num_attention_heads * context**2 * config.num_hidden_layers
    channels = config.hidden_size // config.num_attention_heads
    product = 2 * scores * channels
    return {"scores": product, "mask": scores, "softmax": SOFTMAX_FLOPS * scores, "values": product}


def _parts(
    phase: str, timer: NDArray[np.float64], passes: Sequence[Found], kernels: int, flops: Mapping[str, int]
) -> list[Measured]:
    """The rows of a phase: its timer, the sum of its kernels, the longest of them, their kinds, and its ranges."""
    names = {name for each in passes for name in each if not name.startswith(PREFIX)}
    times = {name: np.array([each.get(name, (0.0, 0))[0] for each in passes]) for name in names}
    calls = {name: round(sum(each.get(name, (0.0, 0))[1] for each in passes) / len(passes)) for name in names}
    total = np.sum(list(times.values()), axis=0)

    def row(part: str, kernel: str, values: NDArray[np.float64], count: int) -> Measured:
        columns: dict[str, float | int | str] = {"phase": phase, "part": part, "kernel": kernel, "calls": count}
        columns |= {"kind": kind_of(kernel) if part == "kernel" else "", "share": float(values.mean() / total.mean())}
        return Measured(values, columns)

    found = [row("timer", "", timer, 1), row("total", "", total, sum(calls.values()))]
    longest = sorted(names, key=lambda name: -times[name].mean())
    found += [row("kernel", name, times[name], calls[name]) for name in longest[:kernels]]
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name in longest:
        by_kind[kind_of(name)].append(name)
    sums = {kind: np.sum([times[name] for name in each], axis=0) for kind, each in by_kind.items()}
    for kind, values in sorted(sums.items(), key=lambda item: -item[1].mean()):
        found.append(row("kind", kind, values, sum(calls[name] for name in by_kind[kind])))
    for name in RANGES if phase in ("inference", "forward") else ():
        values = np.array([each[PREFIX + name][0] for each in passes])
        measured = row("range", name, values, passes[0][PREFIX + name][1])
        found.append(Measured(values, {**measured.columns, "flops": flops[name]}))
    return found

"""The kernels of each phase of a language model's step, as torch's profiler sees them, and the step that nsys profiles.

`python -m dynbench.bench.nsys_profile SIZE CONTEXT BATCH DTYPE DEVICE` is run under nsys.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from dynbench.bench.base import Case, Columns, Measured
from dynbench.bench.measuring import time_calls
from dynbench.bench.model_step import ModelStep, build_model
from dynbench.bench.nsys import SOFTMAX_FLOPS
from dynbench.plugins.benchmarks import NsysOptions

ATTENTION = "dynbench_ranges"
"""Its name in transformers' attention interface."""
PREFIX = "dynbench::"
WARMUP = 5
"""Steps before the one that nsys profiles."""
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

Phases = Mapping[str, Callable[[], object]]


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


def phases_of(step: ModelStep) -> Phases:
    """The phases of a step by name, to be run in their order."""
    losses: list[Tensor] = []
    return {
        "inference": torch.no_grad()(step.forward),
        "forward": lambda: losses.append(step.forward()),
        "backward": lambda: step.backward(losses.pop()),
        "optimizer": step.update,
    }


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
    phases = phases_of(ModelStep(model, batch, context, case.dtype))
    timed: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.warmup):
        for run in phases.values():
            run()
    for _ in range(options.iterations):
        for phase, run in phases.items():
            timed[phase].extend(time_calls(run, 1, device))
    profiled = [list(_profiled(phases, device)) for _ in range(min(options.iterations, PROFILED))]
    flops = range_flops(model, batch, context)
    found: list[Measured] = []
    for title, names in TOGETHER.items():
        timer = np.sum([timed[name] for name in names], axis=0)
        passes = [[(name, ms) for phase, name, ms in each if phase in names] for each in profiled]
        found += _parts(title, timer, passes, options.kernels, flops)
    return found


def _profiled(phases: Phases, device: torch.device) -> Iterator[tuple[str, str, float]]:
    """The phase, name and milliseconds of each kernel and range of one step: each phase ends before the next begins."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        for phase, run in phases.items():
            with span(phase):
                run()
                if on_gpu:
                    torch.cuda.synchronize(device)
    events: list[Any] = list(profiler.events() or ())
    of_host = [event for event in events if event.device_type.name == "CPU"]
    spans = {event.name: event for event in of_host if event.name.startswith(PREFIX)}
    times: list[tuple[Any, float]] = [
        (event, event.device_time_total if on_gpu else event.cpu_time_total)
        for event in of_host
        if event.name in {PREFIX + name for name in RANGES}
    ]
    for event in events if on_gpu else of_host:
        if event.name.startswith(PREFIX):
            continue
        if not on_gpu:
            times.append((event, event.self_cpu_time_total))
        elif event.device_type.name == "CUDA" and not event.name.startswith("Optimizer."):
            times.append((event, event.self_device_time_total))
    for event, us in times:
        for phase in phases:
            within = spans[PREFIX + phase].time_range
            if us > 0 and within.start <= event.time_range.start <= within.end:
                yield phase, event.name, us / 1e3


def range_flops(model: nn.Module, batch: int, context: int) -> dict[str, int]:
    """FLOPs of the parts of attention, over all layers of a forward pass: nothing is left out for the mask."""
    config: Any = model.config
    scores = batch * config.num_attention_heads * context**2 * config.num_hidden_layers
    channels = config.hidden_size // config.num_attention_heads
    product = 2 * scores * channels
    return {"scores": product, "mask": scores, "softmax": SOFTMAX_FLOPS * scores, "values": product}


def _parts(
    phase: str,
    timer: NDArray[np.float64],
    passes: Sequence[Sequence[tuple[str, float]]],
    kernels: int,
    flops: Mapping[str, int],
) -> list[Measured]:
    """The rows of a phase: its timer, the sum of its kernels, the longest of them, their kinds, and its ranges."""
    times: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(passes)))
    counts: Counter[str] = Counter()
    for index, each in enumerate(passes):
        for name, ms in each:
            times[name][index] += ms
            counts[name] += 1
    calls = {name: round(count / len(passes)) for name, count in counts.items()}
    names = [name for name in times if not name.startswith(PREFIX)]
    total = np.sum([times[name] for name in names], axis=0)

    def row(part: str, kernel: str, values: NDArray[np.float64], count: int) -> Measured:
        columns: Columns = {"phase": phase, "part": part, "kernel": kernel, "calls": count}
        columns |= {"kind": kind_of(kernel) if part == "kernel" else "", "share": float(values.mean() / total.mean())}
        return Measured(values, columns)

    found = [row("timer", "", timer, 1), row("total", "", total, sum(calls[name] for name in names))]
    longest = sorted(names, key=lambda name: -times[name].mean())
    found += [row("kernel", name, times[name], calls[name]) for name in longest[:kernels]]
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name in longest:
        by_kind[kind_of(name)].append(name)
    sums = {kind: np.sum([times[name] for name in each], axis=0) for kind, each in by_kind.items()}
    for kind, values in sorted(sums.items(), key=lambda item: -item[1].mean()):
        found.append(row("kind", kind, values, sum(calls[name] for name in by_kind[kind])))
    for name in RANGES if phase in ("inference", "forward") else ():
        measured = row("range", name, times[PREFIX + name], calls[PREFIX + name])
        found.append(replace(measured, columns={**measured.columns, "flops": flops[name]}))
    return found


def run_step(arguments: Sequence[str]) -> None:
    """Warm up, then every phase once between the marks of CUDA's profiler.

    Args:
        arguments: size, context, batch, type, and cpu or cuda.
    """
    size, context, batch, dtype, kind = arguments
    device = torch.device(kind)
    model = ranged_model(size, int(context), device)
    phases = phases_of(ModelStep(model, int(batch), int(context), dtype))
    for index in range(WARMUP + 1):
        if index == WARMUP and device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch's
        for phase, run in phases.items():
            with span(phase):
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
    if device.type == "cuda":
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # torch's


if __name__ == "__main__":
    run_step(sys.argv[1:])

"""Kernels of each phase of a language model's step, as torch's profiler sees them, and the commands for Nsight Systems.

The profiling commands for nsys lie in the run's folder `nsys`, and are run where it is installed; they run
`python -m dynbench.bench.nsys SIZE CONTEXT BATCH DTYPE DEVICE`. Every question has its answer from torch's profiler,
with nsys or without.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dynbench.bench.base import DTYPES, Benchmark, Case, Columns, Measured, Row, titled
from dynbench.bench.measuring import PREFIX, span, time_calls
from dynbench.clock import clock_for
from dynbench.plugins.benchmarks import NsysOptions

if TYPE_CHECKING:
    from dynbench.bench.model_step import ModelStep
    from dynbench.engine.rank.rank_process import RankContext

logger = logging.getLogger(__name__)

FOLDER = "nsys"
REPORTS = ("nvtx_kern_sum", "cuda_gpu_kern_sum")
"""Time and calls by kernel: within each range, and over all."""
LIMIT_S = 600
SOFTMAX_FLOPS = 5
"""Of a score: its part in the maximum, the difference, the exponential, the sum and the quotient."""
NOTABLE = 0.02
"""Share of a phase from which a kind of kernel is listed."""
WARMUP = 5
"""Steps before the one that nsys profiles."""
PROFILED = 5
"""Steps that are profiled, at most: what the profiler writes down takes longer than they do."""
RANGES = ("scores", "mask", "softmax", "values")
"""Parts of attention."""
PHASES_OF = {
    **{name: (name,) for name in ("inference", "forward", "backward", "optimizer")},
    "forward and backward": ("forward", "backward"),
    "step": ("forward", "backward", "optimizer"),
}
"""What rows are of, and the phases that are summed up for it."""
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


class Nsys(Benchmark):
    """Every size at every context in every precision."""

    options: NsysOptions
    headers: ClassVar = titled(
        *("size", "context", "dtype", "phase", "part", "kernel", "calls", "mean", "share", "flops"), flops="FLOPs"
    )

    def cases(self) -> Sequence[Case]:
        """The smallest first, as they are listed."""
        options = self.options
        shapes = product(dict.fromkeys(options.sizes), sorted(set(options.contexts)), dict.fromkeys(options.precisions))
        return [
            Case(
                f"{size}, context {context}, {precision}",
                [options.local_batch, context],
                DTYPES[precision],
                {"size": size, "context": context},
            )
            for size, context, precision in shapes
        ]

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The parts of every phase; then nsys, where it is installed."""
        found = profile_phases(case, self.options, context.device)
        if self.folder is not None:
            script = write_commands(case, self.folder, on_gpu=context.device.type == "cuda")
            if self.options.nsys == "auto":
                if context.device.type == "cuda":  # the profiled process needs what this one has cached
                    gc.collect()
                    torch.cuda.empty_cache()
                run_nsys(script)
        return found

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The answers to the assignment's questions, for every case."""
        cases = dict.fromkeys(row.case for row in rows if row.status == "ok")
        return {"answers": [_answers([row for row in rows if row.case == case]) for case in cases]}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines, of the last case that was measured."""
        answers = self.summary(rows)["answers"]
        return _lines(answers[-1]) if answers else []


def _answers(rows: Sequence[Row]) -> dict[str, object]:
    """Of one size and context."""
    by = {(row.columns["phase"], row.columns["part"], row.columns["kernel"]): row for row in rows}

    def ms(phase: str, part: str, kernel: str = "") -> float:
        row = by.get((phase, part, kernel))
        return 0.0 if row is None else row.mean or 0.0

    def part(phase: str, name: str) -> dict[str, Mapping[str, Any]]:
        return {str(key[2]): row.columns for key, row in by.items() if key[:2] == (phase, name)}

    (first, *_), (trained, *_) = (part(phase, "kernel").values() for phase in ("forward", "forward and backward"))
    others = {kind: columns["share"] for kind, columns in part("forward", "kind").items()}
    flops = {name: columns["flops"] for name, columns in part("forward", "range").items()}
    matmul_ms = ms("forward", "range", "scores") + ms("forward", "range", "values")
    return {
        "size": first["size"],
        "context": first["context"],
        "dtype": rows[0].dtype,
        "forward_timer_ms": ms("forward", "timer"),
        "forward_kernels_ms": ms("forward", "total"),
        "forward_kernel": first["kernel"],
        "forward_calls": first["calls"],
        "forward_share": first["share"],
        "training_kernel": trained["kernel"],
        "same_kernel": first["kernel"] == trained["kernel"],
        "forward_others": {kind: each for kind, each in others.items() if kind != "matmul" and each >= NOTABLE},
        "matmul_share_inference": ms("inference", "kind", "matmul") / ms("inference", "total"),
        "matmul_share_step": ms("step", "kind", "matmul") / ms("step", "total"),
        "softmax_over_matmul_time": ms("forward", "range", "softmax") / matmul_ms,
        "softmax_over_matmul_flops": flops["softmax"] / (flops["scores"] + flops["values"]),
    }


def _lines(answer: Mapping[str, Any]) -> list[str]:
    others = [f"{kind} {share:.0%}" for kind, share in answer["forward_others"].items()]
    same = "also" if answer["same_kernel"] else f"not, but {answer['training_kernel']},"
    kernels, timer, share = (answer[f"forward_{name}"] for name in ("kernels_ms", "timer_ms", "share"))
    inference, step = (answer[f"matmul_share_{name}"] for name in ("inference", "step"))
    time, flops = (answer[f"softmax_over_matmul_{name}"] for name in ("time", "flops"))
    return [
        f"{answer['size']}, context {answer['context']}, {answer['dtype']}: forward takes {kernels:.3g} ms of kernels, "
        f"{timer:.3g} ms by Python's timer",
        f"{answer['forward_kernel']} takes most of it ({share:.0%}, {answer['forward_calls']} calls), {same} in "
        "forward and backward",
        f"beside matrix products: {', '.join(others)}",
        f"matrix products take {inference:.0%} at inference and {step:.0%} of a step with AdamW",
        f"softmax takes {time:.3g} of the time of attention's matrix products, and {flops:.3g} of their FLOPs",
    ]


def write_commands(case: Case, folder: Path, *, on_gpu: bool) -> Path:
    """Write a script that profiles forward, backward and the optimizer of a case, and sums the kernels up.

    Args:
        case: size and context.
        folder: of the run.
        on_gpu: whether there are kernels of CUDA to trace.
    """
    size, (batch, context) = str(case.columns["size"]), case.shape
    script = folder / FOLDER / f"{size}-{context}-{case.dtype}.sh"
    report = script.with_suffix("")
    target = [sys.executable, "-m", "dynbench.bench.nsys", size, str(context), str(batch), case.dtype]
    trace = "cuda,nvtx,osrt" if on_gpu else "nvtx,osrt"
    only = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if on_gpu else []
    options = [f"--trace={trace}", *only, "--force-overwrite=true", f"--output={report}"]
    profiled = ["nsys", "profile", *options, *target, "cuda" if on_gpu else "cpu"]
    sums = ["nsys", "stats", "--force-overwrite=true", "--format=csv", f"--output={report}"]
    reports = [f"--report={name}" for name in REPORTS] if on_gpu else ["--report=nvtx_sum"]
    commands = (profiled, [*sums, *reports, f"{report}.nsys-rep"])
    script.parent.mkdir(exist_ok=True)
    script.write_text("set -e\n" + "".join(shlex.join(each) + "\n" for each in commands), encoding="utf-8")
    return script


def run_nsys(script: Path) -> bool:
    """Run a script where nsys is installed; what it says lies beside the script.

    Returns:
        Whether it ran to its end; a failure is a warning with the file that says why.
    """
    if shutil.which("nsys") is None:
        return False
    log = script.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file:
        profiling = subprocess.Popen(["sh", str(script)], stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = profiling.wait(LIMIT_S)
        finally:  # also where a signal ends this rank
            if code is None:
                os.killpg(profiling.pid, signal.SIGKILL)
                profiling.wait()
    if code != 0:
        ended = f"exit code {code}" if code is not None else f"{LIMIT_S} s were over"
        logger.warning("nsys: %s ended with %s: see %s; torch's profiler has answered", script.name, ended, log)
    return code == 0


def kind_of(kernel: str) -> str:
    """Which of `KINDS` a kernel is of."""
    name = kernel.lower()
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")


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
    from dynbench.bench.model_step import ModelStep, ranged_model

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
    for title, names in PHASES_OF.items():
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
    ranges = {PREFIX + name for name in RANGES}
    hosts = {event.name: event.time_range for event in events if event.device_type.name == "CPU"}
    for event in events:
        on_host, name = event.device_type.name == "CPU", event.name
        if on_host and name in ranges:
            us = event.device_time_total if on_gpu else event.cpu_time_total
        elif not name.startswith((PREFIX, "Optimizer.") if on_gpu else PREFIX) and on_host != on_gpu:
            us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        else:
            continue
        for phase in phases if us > 0 else ():
            if hosts[PREFIX + phase].start <= event.time_range.start <= hosts[PREFIX + phase].end:
                yield phase, name, us / 1e3


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
    from dynbench.bench.model_step import ModelStep, ranged_model

    size, context, batch, dtype, kind = arguments
    device = torch.device(kind)
    model = ranged_model(size, int(context), device)
    phases, clock = phases_of(ModelStep(model, int(batch), int(context), dtype)), clock_for(device)
    for index in range(WARMUP + 1):
        if index == WARMUP and kind == "cuda":
            clock.synchronise()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch's
        for phase, run in phases.items():
            with span(phase):
                run()
            clock.synchronise()
    if kind == "cuda":
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # torch's


if __name__ == "__main__":
    run_step(sys.argv[1:])

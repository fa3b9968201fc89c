"""Kernels of a language model, by Nsight Systems or torch's profiler.

The profiling commands for nsys lie in the run's folder `nsys`, and are run where it is installed. Every question has
its answer from torch's profiler, with nsys or without.
"""

from __future__ import annotations

import gc
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dynbench.bench.base import DTYPES, Benchmark, Case, Measured, Row, titled
from dynbench.plugins.benchmarks import NsysOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext


logger = logging.getLogger(__name__)

FOLDER = "nsys"
REPORTS = ("nvtx_kern_sum", "cuda_gpu_kern_sum")
"""Time and calls by kernel: within each range, and over all."""
LIMIT_S = 600
SOFTMAX_FLOPS = 5
"""Of a score: its part in the maximum, the difference, the exponential, the sum and the quotient."""
NOTABLE = 0.02
"""Share of a phase from which a kind of kernel is told of."""


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
    target = [sys.executable, "-m", "dynbench.bench.nsys_profile", size, str(context), str(batch), case.dtype]
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
        profiling = subprocess.Popen(["sh", str(script)], stdout=file, stderr=subprocess.STDOUT)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = profiling.wait(LIMIT_S)
        finally:  # also where a signal ends this rank
            if code is None:
                _kill_with_children(profiling.pid)
                profiling.wait()
    if code != 0:
        ended = f"exit code {code}" if code is not None else f"{LIMIT_S} s were over"
        logger.warning("nsys: %s ended with %s: see %s; torch's profiler has answered", script.name, ended, log)
    return code == 0


def _kill_with_children(pid: int) -> None:
    """Kill a child of this process, and all that it has started.

    They stay in the rank's process group, so that whoever stops the rank stops them too. It is halted first, so that it
    starts no more.
    """
    children: list[str] = []
    with suppress(OSError):  # it may end meanwhile
        os.kill(pid, signal.SIGSTOP)
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text(encoding="ascii").split()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        _kill_with_children(int(child))


class Nsys(Benchmark):
    """Every size at every context in every precision."""

    options: NsysOptions
    headers: ClassVar = titled(
        *("size", "context", "dtype", "phase", "part", "kernel", "calls", "mean", "share", "flops"), flops="FLOPs"
    )

    def cases(self) -> Sequence[Case]:
        """The smallest first, as they are listed."""
        options = self.options
        shapes = product(dict.fromkeys(options.sizes), sorted(set(options.contexts)))
        return [
            Case(
                f"{size}, context {context}, {precision}",
                [options.local_batch, context],
                DTYPES[precision],
                {"size": size, "context": context},
            )
            for size, context in shapes
            for precision in dict.fromkeys(options.precisions)
        ]

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The parts of every phase; then nsys, where it is installed."""
        from dynbench.bench.nsys_profile import profile_phases

        found = profile_phases(case, self.options, context.device)
        if self.folder is not None:
            script = write_commands(case, self.folder, on_gpu=context.device.type == "cuda")
            if self.options.nsys == "auto":
                if context.device.type == "cuda":  # the profiled process needs what this one has cached
                    import torch

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
        if part in ("timer", "total"):  # every case has these; kinds and ranges may have no time
            return by[phase, part, kernel].mean or 0.0
        row = by.get((phase, part, kernel))
        return 0.0 if row is None or row.mean is None else row.mean

    def part(phase: str, name: str) -> list[Row]:
        return [row for key, row in by.items() if key[:2] == (phase, name)]

    first, trained = part("forward", "kernel")[0], part("forward and backward", "kernel")[0]
    others = {str(row.columns["kernel"]): float(row.columns["share"]) for row in part("forward", "kind")}
    flops = {str(row.columns["kernel"]): float(row.columns["flops"]) for row in part("forward", "range")}
    matmul_ms = ms("forward", "range", "scores") + ms("forward", "range", "values")
    return {
        "size": first.columns["size"],
        "context": first.columns["context"],
        "dtype": first.dtype,
        "forward_timer_ms": ms("forward", "timer"),
        "forward_kernels_ms": ms("forward", "total"),
        "forward_kernel": first.columns["kernel"],
        "forward_calls": first.columns["calls"],
        "forward_share": first.columns["share"],
        "training_kernel": trained.columns["kernel"],
        "same_kernel": first.columns["kernel"] == trained.columns["kernel"],
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

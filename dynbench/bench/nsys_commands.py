"""The commands by which Nsight Systems profiles a case, and their run where it is installed."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from dynbench.bench.base import Case

logger = logging.getLogger(__name__)

FOLDER = "nsys"
REPORTS = ("nvtx_kern_sum", "cuda_gpu_kern_sum")
"""Time and calls by kernel: within each range, and over all."""
LIMIT_S = 600


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
    target = [sys.executable, "-m", "dynbench.bench.nsys_target", size, str(context), str(batch), case.dtype]
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

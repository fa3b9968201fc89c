"""The first run on GPUs as one command: whatever fails, a folder is left with a page that can be sent.

    make first-gpu                                      all that this machine has GPUs for; DEVICE=cpu: without any
    python tests/gpu/first.py FOLDER --only flash sync  these parts alone

Every part is a command of its own with a limit of time, and what it leaves running is ended with it. FOLDER holds
`page.md`, written anew after every part so that it is there however this ends, `logs/` with what each printed, and the
`runs/`. Exits with 0 where all parts passed, 1 where one failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dynbench.engine.launching.resolve import this_machine

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 20.0
"""From being asked to stop to being killed: a launcher stops its ranks and writes where each was."""
MARK = "DYNBENCH_FIRST_GPU"
"""In the environment of a part, by which what it started is found: ranks have sessions of their own."""
MODULES = {"dynbench": "dynbench", "pytest": "pytest", "torchrun": "torch.distributed.run"}
"""What runs programs that belong to this Python."""
TAIL = 40
"""Lines of a part's log on the page."""


@dataclass(frozen=True)
class Part:
    """A command of the first run.

    Args:
        name: of its files.
        command: `dynbench`, `pytest`, `torchrun`, or a program that may not be installed.
        limit_s: seconds after which it is ended.
        gpus: the fewest it can do with.
        cpu: what is added where GPUs are hidden; None where it wants some.
    """

    name: str
    command: str
    limit_s: float = 600
    gpus: int = 1
    cpu: str | None = None

    def on(self, gpus: int | None) -> str:
        """The command with this many GPUs; None: on the CPU."""
        return self.command if gpus is not None else f"{self.command} {self.cpu or ''}".strip()


SMALL = "--set sizes=small --set contexts=128,512"
TINY = "--set sizes=tiny --set contexts=64"
KERNELS = "--set ways=flash_triton,sdpa --set lengths=128,16384 --set widths=64,128 --set dtypes=bfloat16"
KERNELS_CPU = "--set ways=flash_torch,sdpa --set lengths=128,512 --set widths=64 --set dtypes=float32"
WAYS = "--set ways=plain,compiled,sdpa,flex,flash_torch,flash_triton"
SIZES = "--set operations=all_reduce --set sizes_mib=1,10,100"
COMPILED = "--set execution=eager,compiled"
EACH = "--steps 50 --batch-per-worker 16"  # one batch for all is not a multiple of the workers of ps
FP16 = "dynbench train --sync overlap --precision fp16 --steps 50"
SYNC, COMPRESS = ("ddp", "fsdp", "zero1", "ps", "diloco"), ("topk", "powersgd", "int8", "fp8")
PARTS: Sequence[Part] = (
    Part("doctor", "dynbench doctor", 300, cpu=""),
    Part("quickstart", "dynbench compare quickstart", 1200, cpu=""),
    Part("quickstart_fp32", "dynbench compare quickstart --precision fp32", 1200),
    Part("packed_bf16", "dynbench train --policy packed --precision bf16 --steps 50"),
    Part("packed_fp32", "dynbench train --policy packed --precision fp32 --steps 50", cpu=""),
    Part("probe", "dynbench probe", 1200, cpu=""),
    Part("flash", f"dynbench bench flash {KERNELS}", 1200, cpu=KERNELS_CPU),
    Part("attention", f"dynbench bench attention {WAYS}", 1200, cpu="--set ways=plain,sdpa,flash_torch"),
    Part("transformer", f"dynbench bench transformer {SMALL} {COMPILED}", 1200, cpu=f"{TINY} --set execution=eager"),
    Part("memory", f"dynbench bench memory {SMALL}", cpu=TINY),
    Part("nsys", f"dynbench bench nsys {SMALL}", 1200, cpu=TINY),
    Part("gpu_tests", "pytest -m gpu tests/gpu", 1800),
    Part("sync", "dynbench compare sync", 1800, 2, ""),
    Part("fully_shard", "torchrun --standalone --nproc-per-node 2 tests/gpu/fully_shard.py", 600, 2, "--device cpu"),
    *(Part(each, f"dynbench train --sync {each} {EACH}", 600, 2, "") for each in SYNC),
    *(Part(f"fp16_{each}", f"{FP16} --optimizer {each}", 600, 2) for each in ("adamw", "sgd")),
    *(Part(each, f"dynbench train --compress {each} --steps 50", 600, 2, "") for each in COMPRESS),
    Part("profile", "dynbench train --profile 2 --steps 10", 600, 2, ""),
    Part("collectives", f"dynbench bench collectives {SIZES} --set processes=2", 600, 2, ""),
    Part("nccl_tests", "all_reduce_perf -b 1M -e 100M -f 10 -g 2", 600, 2),
    *(Part(f"collectives_{n}", f"dynbench bench collectives {SIZES} --set processes={n}", 600, n) for n in (4, 8)),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Args:
        part: it.
        ran: seconds; None where it was left out.
        fault: why it failed or was left out, in words; empty where it passed.
    """

    part: Part
    ran: float | None
    fault: str = ""

    @property
    def result(self) -> str:
        """Of the page's table."""
        return "left out" if self.ran is None else "FAILED" if self.fault else "passed"


def words_of(command: str, folder: Path) -> list[str]:
    """A command as it is run."""
    program, *words = shlex.split(command)
    if program == "dynbench":
        words += ["--results", str(folder / "runs")]
    module = MODULES.get(program)
    return [*([program] if module is None else [sys.executable, "-m", module]), *words]


def why_not(part: Part, gpus: int | None) -> str:
    """Why a part is left out; empty where it is not."""
    if gpus is None and part.cpu is None:
        return "wants GPUs"
    if gpus is not None and gpus < part.gpus:
        return f"wants {part.gpus} GPUs, here {'is' if gpus == 1 else 'are'} {gpus}"
    program = words_of(part.command, Path())[0]
    return "" if shutil.which(program) else f"{program} is not installed"


def run(part: Part, folder: Path, gpus: int | None) -> Outcome:
    """Run a part to its end or its limit; nothing that it started goes on."""
    began, mark, fault = time.monotonic(), f"{os.getpid()}-{part.name}", ""
    with (folder / "logs" / f"{part.name}.log").open("wb") as log:
        process = subprocess.Popen(
            words_of(part.on(gpus), folder),
            cwd=ROOT,
            env={**os.environ, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if code := process.wait(part.limit_s):
                fault = f"exit code {code}"
        except subprocess.TimeoutExpired:
            fault = f"not done after {part.limit_s:g} s"
        finally:
            _end(process, mark)
    return Outcome(part, time.monotonic() - began, fault)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ask a part to stop where it has not, then kill what is left of it, as far as that can be killed."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    deadline = time.monotonic() + GRACE_S
    while (left := list(_marked(mark))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)


def _marked(mark: str) -> Iterator[int]:
    entry = os.fsencode(f"{MARK}={mark}")
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if entry in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)


def page(outcomes: Sequence[Outcome], parts: int, folder: Path, gpus: int | None) -> str:
    """What ran, what failed, what was left out, and the end of what each printed, as Markdown."""
    by_result = {
        result: [each for each in outcomes if each.result == result] for result in ("passed", "FAILED", "left out")
    }
    counts = ", ".join(f"{len(found)} {result.lower()}" for result, found in by_result.items())
    if parts > len(outcomes):
        counts += f", {parts - len(outcomes)} not ended"
    where = "on the CPU" if gpus is None else f"{gpus} GPU{'s' * (gpus > 1)}"
    lines = ["# First run on GPUs", "", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {where}: {counts}.", ""]
    lines += ["| part | result | s | command |", "|---|---|---|---|"]
    for each in outcomes:
        took = "" if each.ran is None else f"{each.ran:.0f}"
        lines.append(f"| {each.part.name} | {each.result} | {took} | `{each.part.on(gpus)}` |")
    for each in by_result["FAILED"]:
        lines += ["", f"## {each.part.name}: {each.fault}", "", *log_tail(each.part, folder)]
    if by_result["left out"]:
        lines += ["", "## Left out", "", *(f"- {each.part.name}: {each.fault}" for each in by_result["left out"])]
    for each in by_result["passed"]:
        lines += ["", f"## {each.part.name}", "", *log_tail(each.part, folder)]
    return "\n".join(lines) + "\n"


def log_tail(part: Part, folder: Path) -> list[str]:
    """The end of what a part printed, as a block of Markdown."""
    log = (folder / "logs" / f"{part.name}.log").read_text(encoding="utf-8", errors="replace")
    return [f"    {line}" for line in log.splitlines()[-TAIL:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "results" / "first_gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART")
    given = parser.parse_args(arguments)
    gpus = None if given.device == "cpu" else this_machine().gpus
    if gpus == 0:
        why = this_machine().gpu_fault or "torch sees none"
        print(
            f"no GPU ({why}); --device cpu, or make first-gpu DEVICE=cpu, runs the parts that need none",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs is ended first
    folder, outcomes = given.folder.resolve(), []
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not given.only or part.name in given.only]
    for part in parts:
        missing = why_not(part, gpus)
        outcomes.append(Outcome(part, None, missing) if missing else run(part, folder, gpus))
        (folder / "page.md").write_text(page(outcomes, len(parts), folder, gpus), encoding="utf-8")
        print(f"{part.name}: {outcomes[-1].result} {outcomes[-1].fault}".rstrip(), flush=True)
    print(folder / "page.md")
    return 1 if any(each.result == "FAILED" for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

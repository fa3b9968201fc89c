"""Training that goes on for long: the memory and the open files of its launcher and ranks stay what they were.

    make soak                                      30 minutes, SOAK_MINUTES=3 for fewer
    python tests/scale/soak.py FOLDER --minutes 3 --set sync.name=fsdp

A process leaks where the line through what it held, warm-up left out, rises by more than `GROWTH` of it, or by one open
file or more, from its first look to its last. The longer the soak, the smaller the leak of a step that it finds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from dynbench.analysis.stats import relative_drift
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.probe.children import TIDY_MALLOC
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

GROWTH = 0.03
"""Of the memory held, that the line may rise by."""
WARM = 1 / 3
"""Of the looks, the first ones, that are left out: allocators and caches fill."""
LOOKS = 300
FIRST_STEPS, PATIENCE_S = 50, 300
"""Steps that are waited for before the first look, and for how long."""
MOST_STEPS_A_SECOND = 2000
"""More than there will be: what is not ended, as its soak was killed, ends by itself some time."""
ENDLESS = (
    "workload.subset=512",
    "workload.max_length=32",
    "train.global_batch=8",
    "train.warmup_steps=10",
    "train.steps=1000000000",
    "train.eval_every=500",
    "train.eval_samples=32",
    "schedule.mode=dynamic",
    "schedule.policy=window",
    "schedule.window=4",
    "sync.name=bucketed",
    "launch.nproc=2",
    "launch.threads=1",
    "launch.device=cpu",
)
"""Steps of some milliseconds, planned anew in every window, counted on the wire, and evaluated now and then."""


@dataclass(frozen=True)
class Look:
    """What a process held at one time.

    Args:
        memory: bytes of its own, in memory or swapped out.
        files: how many it had open, sockets and pipes among them.
    """

    memory: int
    files: int


def look_at(pid: int) -> Look:
    """What a process holds.

    Raises:
        OSError: it has ended.
    """
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap"))
    return Look(memory * 1024, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


def leaks(looks: Sequence[Look]) -> list[str]:
    """What grew, in words; nothing where all is flat."""
    kept = looks[int(WARM * len(looks)) :]
    memory, files = (np.array([getattr(one, name) for one in kept], np.float64) for name in ("memory", "files"))
    grown, opened = relative_drift(memory), relative_drift(files) * float(np.median(files))
    found = []
    if grown > GROWTH:
        held = float(np.median(memory))
        found.append(f"memory grew by {grown * held / 1e6:.1f} MB of {held / 1e6:.0f} MB (limit {GROWTH:.0%})")
    if opened >= 1:
        found.append(f"{opened:.0f} more open files, of {np.median(files):.0f}")
    return found


@dataclass
class Soak:
    """A run that is looked at while it trains.

    Args:
        process: its launcher.
        run: its folder.
        looks: by process, `launcher` or `rank N`, in order of time.
    """

    process: subprocess.Popen[str]
    run: Run
    looks: dict[str, list[Look]]

    def steps(self) -> int:
        """Lines of the first rank's file."""
        with suppress(OSError), self.run.rank_file(0).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        return 0

    def watch(self, pause_s: float, more: Callable[[], bool]) -> None:
        """Look again and again, while there is to be more and the run goes on."""
        pids = {"launcher": self.process.pid, **ranks_of(self.run)}
        self.looks.update({name: [] for name in pids})
        while more() and self.process.poll() is None:
            for name, pid in pids.items():
                with suppress(OSError):
                    self.looks[name].append(look_at(pid))
            time.sleep(pause_s)

    def found(self) -> Mapping[str, list[str]]:
        """By process, what grew."""
        return {name: leaks(looks) for name, looks in self.looks.items()}


def ranks_of(run: Run) -> dict[str, int]:
    """The ranks of a run and their process ids."""
    found = {}
    for pid in rank_pids(WORKER_MODULE, run):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next(word.removeprefix(b"RANK=").decode() for word in words if word.startswith(b"RANK="))
        found[f"rank {rank}"] = pid
    return dict(sorted(found.items()))


def begin(results: Path, settings: Sequence[str]) -> Soak:
    """Start training that does not end by itself, and wait for some steps.

    Its allocator gives back at once what is freed, so that what is held is what is kept.

    Raises:
        RuntimeError: it ended, or took too long.
    """
    argv = [sys.executable, "-m", "dynbench.cli.main", "train", "--json", "--no-figures"]
    argv += [word for setting in settings for word in ("--set", setting)]
    env = {**os.environ, **TIDY_MALLOC, "DYNBENCH_RESULTS": str(results)}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    deadline, store = time.monotonic() + PATIENCE_S, RunStore(results)
    while process.poll() is None and time.monotonic() < deadline:
        for run in store.list()[-1:]:
            soak = Soak(process, run, {})
            if soak.steps() > FIRST_STEPS:
                return soak
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"no steps after {PATIENCE_S} s, or ended before: {process.communicate()[0]}")


def end(soak: Soak) -> list[str]:
    """Interrupt the run, and say what is wrong with what it left."""
    soak.process.send_signal(signal.SIGINT)
    soak.process.communicate(timeout=600)
    wrong = []
    if (soak.process.returncode, soak.run.status) != (130, Status.INTERRUPTED):
        wrong.append(f"ended with {soak.process.returncode}, {soak.run.status}")
    if left := rank_pids(WORKER_MODULE, soak.run):
        wrong.append(f"processes {left} are left")
    wrong += list(_gaps(soak.run))
    summary = json.loads((soak.run.path / "summary.json").read_text(encoding="utf-8"))
    if not summary["partial"] or summary["steps"] < soak.steps() - 20:
        wrong.append(f"the summary is of {summary['steps']} of {soak.steps()} steps")
    return wrong


def _gaps(run: Run) -> Iterator[str]:
    for file in sorted(run.ranks_dir.glob("rank_*.csv")):
        steps = pl.read_csv(file, columns=["step"])["step"].to_numpy()
        if not np.array_equal(steps, np.arange(len(steps))):
            yield f"{file.name}: a step is missing, or is there twice"


def _soaked(soak: Soak, minutes: float) -> list[str]:
    until, before = time.monotonic() + 60 * minutes, soak.steps()
    print(f"{soak.run.path}: soaks for {minutes:g} minutes", flush=True)
    soak.watch(60 * minutes / LOOKS, lambda: time.monotonic() < until)
    print(f"{soak.steps() - before:,} steps")
    for name, looks in soak.looks.items():
        kept = looks[int(WARM * len(looks)) :]
        memory = f"{kept[0].memory / 1e6:.1f} to {kept[-1].memory / 1e6:.1f} MB"
        print(f"{name}: {memory}, {kept[0].files} to {kept[-1].files} open files, {len(looks)} looks")
    return [f"{name}: {what}" for name, found in soak.found().items() for what in found] + end(soak)


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, say what every process held, and what grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="A registry of runs.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(argv)
    steps = math.ceil(60 * given.minutes * MOST_STEPS_A_SECOND)
    soak = begin(given.folder, (*ENDLESS, f"train.steps={steps}", *given.settings))
    try:
        wrong = _soaked(soak, given.minutes)
    finally:
        if soak.process.poll() is None:
            soak.process.send_signal(signal.SIGINT)
    print("\n".join(wrong) or "flat, and every row is there")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Training that goes on for long: the memory and the open files of its launcher and ranks stay what they were.

    make soak                                      30 minutes, SOAK_MINUTES=3 for fewer
    PYTHONPATH=tests python -m scale.soak FOLDER --minutes 3 --set sync.name=fsdp

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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

import numpy as np
import polars as pl
from multiproc.faults import Command, check
from multiproc.launches import sets

from dynbench.analysis.stats import relative_drift
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.probe.children import TIDY_MALLOC
from dynbench.runs.run import Run, Status

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
        command: that started it.
        looks: by process, `launcher` or `rank N`, in order of time.
    """

    command: Command
    looks: dict[str, list[Look]] = field(default_factory=dict)

    @property
    def process(self) -> subprocess.Popen[str]:
        """Its launcher."""
        assert self.command.process is not None
        return self.command.process

    def steps(self) -> int:
        """Fewest rows of a rank."""
        return min(self.command.wait_for_rows())

    def watch(self, pause_s: float, more: Callable[[], bool]) -> None:
        """Look again and again, while there is to be more and the run goes on."""
        pids = {"launcher": self.process.pid, **ranks_of(self.command.run)}
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


def begin(folder: Path, settings: Sequence[str]) -> Soak:
    """Start training that does not end by itself, and wait for some steps.

    Its allocator gives back at once what is freed, so that what is held is what is kept.
    """
    soak = Soak(Command(folder))
    with patch.dict(os.environ, TIDY_MALLOC):
        soak.command.begin("train", "-q", *sets(*settings), real=True, bare=True)
    soak.command.wait_for_rows(FIRST_STEPS)
    return soak


def end(soak: Soak) -> None:
    """Interrupt the run; what it leaves is as it has to be, and every row is there."""
    soak.process.send_signal(signal.SIGINT)
    ended, run = soak.command.end(), soak.command.run
    written = soak.steps()
    check(ended, 130, Status.INTERRUPTED, rows=written)
    for file in run.ranks_dir.glob("rank_*.csv"):
        steps = pl.read_csv(file, columns=["step"])["step"].to_numpy()
        assert np.array_equal(steps, np.arange(len(steps))), f"{file.name}: a step is missing, or is there twice"
    summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    assert summary["partial"] and summary["steps"] >= written - 20, summary["steps"]


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, say what every process held, and what grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where it works, with a registry of runs.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(argv)
    steps = math.ceil(60 * given.minutes * MOST_STEPS_A_SECOND)
    given.folder.mkdir(parents=True, exist_ok=True)
    soak = begin(Path(mkdtemp(dir=given.folder)), (*ENDLESS, f"train.steps={steps}", *given.settings))
    until, before = time.monotonic() + 60 * given.minutes, soak.steps()
    print(f"{soak.command.run.path}: soaks for {given.minutes:g} minutes", flush=True)
    try:
        soak.watch(60 * given.minutes / LOOKS, lambda: time.monotonic() < until)
        print(f"{soak.steps() - before:,} steps")
    finally:
        end(soak)
    for name, looks in soak.looks.items():
        kept = looks[int(WARM * len(looks)) :]
        print(f"{name}: {kept[0]} to {kept[-1]}, {len(looks)} looks")
    wrong = [f"{name}: {what}" for name, found in soak.found().items() for what in found]
    print("\n".join(wrong) or "flat, and every row is there")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

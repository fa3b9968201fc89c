"""Faults planted in programs that are forked: statements to run first, which hold for the ranks too."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import dynbench.engine.rank.rank_process as rank_process
from dynbench.engine.failure import PositionFile
from dynbench.signals import STOPPING

ROOM = 40
"""Bytes that the next row of a rank finds on a disk that is full: less than a row."""
RECORD = 6000
"""Bytes that the record of a run finds room in, and no file of an analysis does."""


def at(what: str, phase: str, *, rank: int = 0, step: int | None = None) -> str:
    """Statements that let a rank meet a fault where it begins a phase, of a step or before the first one.

    Args:
        what: one of `FAULTS`.
        phase: as `PositionFile.at` is told it.
        rank: the rank.
        step: of the arm that comes there first; None before the first one, and where there are no steps.
    """
    return f"import planted; planted.plant({what!r}, {phase!r}, {rank}, {step})"


def plant(what: str, phase: str, rank: int, step: int | None) -> None:
    """See `at`."""
    begins, fault = PositionFile.at, FAULTS[what]

    def begins_or_fails(self: PositionFile, name: str) -> None:
        begins(self, name)
        if (name, self._step, os.environ.get("RANK")) == (phase, "" if step is None else str(step), str(rank)):
            fault(self)

    PositionFile.at = begins_or_fails  # type: ignore[method-assign]


def plant_in_launcher(what: str, owner: object, name: str) -> None:
    """Let the launcher meet a fault before it does what a function of a module does."""
    does = getattr(owner, name)

    def fails(*args: object, **named: object) -> object:
        FAULTS[what](PositionFile())
        return does(*args, **named)

    setattr(owner, name, fails)


def data_that_change(file: str, old: str, new: str, launch: int) -> None:
    """Let somebody replace a word in a data file before a comparison's launch of this number, counted from 0."""
    import dynbench.experiment.launches as launches

    runs, path, begun = launches.run_arms, Path(file), count()

    def changed(*arms: Any, **how: Any) -> Any:
        if next(begun) == launch:
            path.write_text(path.read_text().replace(old, new))
        return runs(*arms, **how)

    launches.run_arms = changed


def trial_process(signum: int, times: int) -> None:
    """Send a signal to a probe's process of rank 1 whenever it is about to be asked for a trial, so many times."""
    from dynbench.probe.children import Children

    asks, left = Children.ask, [times]

    def ask(self: Children, requests: Any, *, collective: bool = False) -> Any:
        if left[0] and requests[0].get("op") == "trial":
            left[0] -= 1
            os.kill(self.pids[1], signum)
        return asks(self, requests, collective=collective)

    Children.ask = ask


def greedy_rank() -> None:
    """A trial process of rank 1 that finds no memory in any step."""
    from dynbench.sync.ddp import Ddp

    steps = Ddp.step

    def step(self: Ddp, *given: Any) -> None:
        if self.wire.rank == 1 and resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
            raise MemoryError("out of memory")
        steps(self, *given)

    Ddp.step = step  # type: ignore[method-assign]


def impatient_launcher() -> None:
    """Once a rank has failed torchrun waits 30 s for one that hangs before it kills it, which no option changes."""
    from torch.distributed.elastic.multiprocessing.api import PContext

    closes = PContext.close
    PContext.close = lambda context, death_sig=None, timeout=0: closes(context, death_sig, 1)  # type: ignore[method-assign]


def deaf_ranks() -> None:
    """Ranks that hear no signal that asks them to stop, as a library of somebody's may make them."""
    rank_process.handle = lambda _handler: [signal.signal(each, signal.SIG_IGN) for each in STOPPING]


def clock_that_steps_back(seconds: float = 3600) -> None:
    """A clock that is set back a little whenever it is looked at, as the first time after the start by an hour."""
    import dynbench.runs.run as names

    looked = [0]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            looked[0] += 1
            return datetime.now(UTC) - timedelta(seconds=seconds * looked[0])

    names.datetime = Clock  # type: ignore[misc,attr-defined]
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() - int(seconds * 1e9) * (1 + looked[0])


def _without_memory(_: PositionFile) -> None:
    import torch

    torch.empty(2**60, dtype=torch.uint8)


def _fails(_: PositionFile) -> None:
    raise ValueError("planted")


def _disk_full(here: PositionFile) -> None:
    """No file of this process can grow beyond the rank's rows and a part of the next one (setrlimit(2))."""
    assert here._file is not None
    of_rank, of_benchmark = (here._file.with_name(name) for name in (f"rank_{os.environ['RANK']}.csv", "rows.jsonl"))
    rows = of_rank if of_rank.exists() else of_benchmark
    _limit_files(rows.stat().st_size + ROOM)


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


FAULTS: dict[str, Callable[[PositionFile], None]] = {
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "launcher killed": lambda _: os.kill(os.getppid(), signal.SIGKILL),
    "hangs": lambda _: time.sleep(10**6),
    "stopped": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "fails": _fails,
    "without memory": _without_memory,
    "disk full": _disk_full,
    "no room": lambda _: _limit_files(64),
    "room for a record": lambda _: _limit_files(RECORD),
}


def in_folder(folder: Path) -> list[int]:
    """Live processes that work in a folder: all that a command that was started there has started in its turn."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:  # it ended, or is nobody of ours
            continue
    return found

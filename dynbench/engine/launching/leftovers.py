"""No process outlives its run: ranks still there after torchrun has returned are stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dynbench.runs.run import Run

GRACE_S = 5.0
_POLL_S = 0.05


def stop_leftovers(module: str, run: Run) -> None:
    """Ask ranks of this run to stop, and kill those that have not after a while.

    torchrun waits for its ranks, but a second signal can make it give up waiting. On systems without /proc nothing is
    looked for.
    """
    deadline = time.monotonic() + GRACE_S
    for pid in rank_pids(module, run):
        _signal(pid, signal.SIGTERM)
    while (left := rank_pids(module, run)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for pid in left:
        _signal(pid, signal.SIGKILL)


def rank_pids(module: str, run: Run) -> list[int]:
    """Live processes of this machine that run the module as a rank of this run."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _is_rank(folder, module, run)]


def _is_rank(folder: Path, module: str, run: Run) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return module.encode() in words and os.fsencode(run.path) in words


def _signal(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return

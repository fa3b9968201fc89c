"""What a launch leaves: logs, and processes that outlive it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dynbench.engine.launching.torchrun import torchrun_log_dir
from dynbench.runs.run import Run

EARLY_LOG = "launch.log"
GRACE_S = 5.0
_POLL_S = 0.05
_RANK_OF = "DYNBENCH_RANK_OF"


def collect_logs(runs: Sequence[Run]) -> None:
    """Keep what ranks printed before they opened their own log, remove torchrun's folders; every run gets all logs."""
    run, *others = runs
    _collect(run)
    for other in others:
        for log in run.logs_dir.glob("*.log"):
            shutil.copyfile(log, other.logs_dir / log.name)


def _collect(run: Run) -> None:
    folder = torchrun_log_dir(run.path)
    if not folder.exists():
        return
    early = [path for path in sorted(folder.rglob("*.log")) if path.stat().st_size > 0]
    if early:
        with (run.logs_dir / EARLY_LOG).open("ab") as log:
            for path in early:
                log.write(f"--- local rank {path.parent.name}, {path.stem}\n".encode() + path.read_bytes())
    shutil.rmtree(folder)


def marked_environment(run: Run) -> dict[str, str]:
    """The variable by which ranks of this run, and what they start, are known."""
    return {_RANK_OF: str(run.path)}


def stop_leftovers(module: str, run: Run) -> None:
    """Ask ranks of this run to stop, and what they started, and kill those that have not after a while.

    torchrun waits for its ranks, but a second signal can make it give up waiting; and a rank that is killed cannot stop
    what it started, as a profiler. On systems without /proc nothing is looked for.
    """
    deadline = time.monotonic() + GRACE_S
    for pid in _left(module, run):
        _signal(pid, signal.SIGTERM)
    while (left := _left(module, run)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for pid in left:
        _signal(pid, signal.SIGKILL)


def rank_pids(module: str, run: Run) -> list[int]:
    """Live processes of this machine that run the module as a rank of this run."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _is_rank(folder, module, run)]


def _left(module: str, run: Run) -> list[int]:
    """Ranks of this run, and what they started."""
    folders = Path("/proc").glob("[0-9]*")
    return [int(folder.name) for folder in folders if _is_rank(folder, module, run) or _started_by_rank(folder, run)]


def _started_by_rank(folder: Path, run: Run) -> bool:
    """What the launcher itself started meanwhile has the mark, but no rank."""
    words = _words(folder / "environ")
    return os.fsencode(f"{_RANK_OF}={run.path}") in words and any(word.startswith(b"RANK=") for word in words)


def _is_rank(folder: Path, module: str, run: Run) -> bool:
    words = _words(folder / "cmdline")
    return module.encode() in words and os.fsencode(run.path) in words


def _words(file: Path) -> list[bytes]:
    """What a file of /proc holds; nothing of a process that has ended, or is somebody else's."""
    with suppress(OSError):
        return file.read_bytes().split(b"\0")
    return []


def _signal(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return

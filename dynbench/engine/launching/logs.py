"""The ranks' output, left as `logs/rank_<r>.log` and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from dynbench.engine.launching.torchrun import torchrun_log_dir
from dynbench.runs.run import Run

EARLY_LOG = "launch.log"


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

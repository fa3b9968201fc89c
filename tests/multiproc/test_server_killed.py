"""Under a parameter server: killed in mid-run, the server or a worker, which the message names; none is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from multiproc.faults import ENDLESS, Command, check

from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.runs.run import Run
from dynbench.runs.run_record import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]


def _pid_of(run: Run, rank: int) -> int:
    for pid in rank_pids(WORKER_MODULE, run):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no process runs rank {rank}")


@pytest.mark.parametrize(
    ("sync", "rank", "title"),
    [("ps", 0, "rank 0 (server)"), pytest.param("ps_flat", 2, "rank 2 (worker 2)", marks=pytest.mark.matrix)],
)
def test_a_killed_server_or_worker_is_named_and_nobody_is_left(
    tmp_path: Path, sync: str, rank: int, title: str
) -> None:
    begun = Command(tmp_path)
    given = ("--set", "launch.nproc=3", "--set", f"sync.name={sync}")
    begun.begin("train", "--json", *ENDLESS, *given, real=True)
    written = begun.wait_for_rows(4, ranks=3)
    os.kill(_pid_of(begun.run, rank), signal.SIGKILL)
    ended = begun.end()
    check(ended, 3, Status.FAILED, f"{title} was killed by SIGKILL", rows=written, rank=rank)
    assert ended.error["kind"] == "worker"
    summary = json.loads((ended.run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["workers"] == 2
    assert set(summary["timed_ms"]["workers"]) >= {"push_ms", "pull_ms"}
    log = (ended.run.logs_dir / "rank_1.log").read_text()
    assert "rank 1 (worker 1) INFO" in log

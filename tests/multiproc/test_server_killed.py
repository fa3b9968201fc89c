"""Under a parameter server: killed in mid-run, the server or a worker, which the message names; none is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from multiproc.faults import Saw, how_it_ended
from multiproc.launches import TINY, start, wait_until

from dynbench.engine.launching.leftovers import rank_pids
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.runs.run import Run
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

SERVED = (*(each for each in TINY if "nproc" not in each), "launch.nproc=3", "train.steps=100000")


def _pid_of(run: Run, rank: int) -> int:
    for pid in rank_pids(WORKER_MODULE, run):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no process runs rank {rank}")


def _lines(run: Run, rank: int) -> int:
    file = run.rank_file(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize(
    ("sync", "rank", "title"),
    [("ps", 0, "rank 0 (server)"), pytest.param("ps_flat", 2, "rank 2 (worker 2)", marks=pytest.mark.matrix)],
)
def test_a_killed_server_or_worker_is_named_and_nobody_is_left(
    tmp_path: Path, saw: Saw, sync: str, rank: int, title: str
) -> None:
    process = start(tmp_path, "train", "--json", settings=(*SERVED, f"sync.name={sync}"))
    store = RunStore(tmp_path)
    wait_until(lambda: len(store.list()) == 1, "the run folder")
    (run,) = store.list()
    wait_until(lambda: all(_lines(run, each) > 4 for each in range(3)), "the first rows")
    os.kill(_pid_of(run, rank), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 3, stderr
    error = json.loads(stdout)["error"]
    assert error["kind"] == "worker" and f"{title} was killed by SIGKILL" in error["message"]
    assert rank_pids(WORKER_MODULE, run) == []
    assert (run.status, run.record().exit_code) == (Status.FAILED, 3)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["workers"] == 2
    assert set(summary["timed_ms"]["workers"]) >= {"push_ms", "pull_ms"}
    log = (run.logs_dir / "rank_1.log").read_text()
    assert "rank 1 (worker 1) INFO" in log
    saw(how_it_ended(3, run, error["message"]))

"""Killed, terminated or interrupted in mid-run: no process left, rows kept, status and exit code right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from multiproc.faults import Saw, how_it_ended
from multiproc.launches import TINY, command, environment, rows_of, start, wait_until

from dynbench.config.ranks import ranks_under
from dynbench.engine.launching.leftovers import rank_pids
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Run
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

ENDLESS = (*TINY, "train.steps=100000")
PAGE = 4096
MATRIX = pytest.mark.matrix
"""In every strategy, which `make test` leaves out."""


def worker_pids(run: Run) -> list[int]:
    return rank_pids(WORKER_MODULE, run)


def started(results: Path, *settings: str, ranks: int = 2) -> tuple[subprocess.Popen[str], Run]:
    """A run that has recorded a few measured steps on all ranks."""
    process = start(results, "train", "--json", settings=(*ENDLESS, f"launch.nproc={ranks}", *settings))
    store = RunStore(results)
    wait_until(lambda: len(store.list()) == 1, "the run folder")
    run = store.list()[0]
    wait_until(lambda: all(_lines(run, rank) > 6 for rank in range(ranks)), "the first rows")
    return process, run


def _lines(run: Run, rank: int) -> int:
    file = run.rank_file(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _pid_of(run: Run, rank: int) -> int:
    for pid in worker_pids(run):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in words:
            return pid
    raise AssertionError(f"no process runs rank {rank}")


def _check_partial(run: Run, status: Status, exit_code: int) -> None:
    record = run.record()
    assert (record.status, record.exit_code) == (status, exit_code)
    assert any("partial" in warning for warning in record.warnings)
    assert worker_pids(run) == []
    rows = rows_of(run)
    assert rows["step"].n_unique() >= 5
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["steps"] >= 3


@pytest.mark.parametrize("sync", [pytest.param(name, marks=() if name == "ddp" else MATRIX) for name in STRATEGIES])
def test_kill_9_of_a_rank(tmp_path: Path, saw: Saw, sync: str) -> None:
    ranks = 2 + STRATEGIES[sync].servers
    process, run = started(tmp_path, f"sync.name={sync}", ranks=ranks)
    os.kill(_pid_of(run, ranks - 1), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 3, stderr
    error = json.loads(stdout)["error"]
    assert (
        error["kind"] == "worker"
        and f"{ranks_under(sync, ranks).title(ranks - 1)} was killed by SIGKILL" in error["message"]
    )
    assert f"rank_{ranks - 1}.log" in error["message"]
    _check_partial(run, Status.FAILED, 3)
    failure = run.record().failure
    assert failure is not None and (failure.rank, failure.log) == (ranks - 1, f"logs/rank_{ranks - 1}.log")
    saw(how_it_ended(3, run, error["message"]))


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_launcher_told_to_stop(tmp_path: Path, saw: Saw, signum: signal.Signals, exit_code: int) -> None:
    process, run = started(tmp_path)
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == exit_code, stderr
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    _check_partial(run, Status.INTERRUPTED, exit_code)
    assert all(line.count(",") == rows_of(run).width - 1 for line in run.rank_file(0).read_text().splitlines())
    saw(how_it_ended(exit_code, run, json.loads(stdout)["error"]["message"]))


def test_impatient_user(tmp_path: Path, saw: Saw) -> None:
    process, run = started(tmp_path)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert worker_pids(run) == []
    assert run.status is Status.INTERRUPTED
    saw(how_it_ended(130, run))


def test_kill_9_of_the_launcher(tmp_path: Path, saw: Saw) -> None:
    process, run = started(tmp_path)
    process.kill()
    process.communicate(timeout=300)
    wait_until(lambda: worker_pids(run) == [], "the ranks to end", 60)
    assert run.status is Status.LOST
    saw(how_it_ended(-9, run))


@pytest.mark.parametrize(
    "arguments", [("probe", "--nproc", "2", "--device", "cpu"), ("solve", "sst2", "--steps", "10000000")]
)
def test_what_trains_nothing_is_stopped_too(tmp_path: Path, saw: Saw, arguments: tuple[str, ...]) -> None:
    process = start(tmp_path, *arguments, "--json")
    store = RunStore(tmp_path)
    wait_until(lambda: [run.status for run in store.list()] == [Status.RUNNING], "the run to begin")
    wait_until(lambda: arguments[0] == "solve" or len(_trial_processes(process.pid)) == 2, "the trial processes")
    trials = _trial_processes(process.pid)
    process.terminate()
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 143, stderr
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    record = store.list()[0].record()
    assert (record.status, record.exit_code) == (Status.INTERRUPTED, 143)
    assert not [pid for pid in trials if Path(f"/proc/{pid}").exists()]
    saw(how_it_ended(143, store.list()[0], json.loads(stdout)["error"]["message"]))


def _trial_processes(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    return [pid for pid in pids if b"dynbench.probe.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.matrix
def test_a_run_whose_reader_goes_away_is_completed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("train"), env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    assert process.wait(300) == 141
    (run,) = RunStore(tmp_path).list()
    assert (run.status, run.record().exit_code) == (Status.COMPLETED, 0)

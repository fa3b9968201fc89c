"""Killed, terminated or interrupted in mid-run: no process left, rows kept, status and exit code right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from multiproc.faults import ENDLESS, Command, check, settled
from multiproc.launches import command, environment, wait_until

from dynbench.config.ranks import ranks_under
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Run
from dynbench.runs.run_record import RunRecord, Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

MATRIX = pytest.mark.matrix
"""In every strategy, which `make test` leaves out."""


def started(folder: Path, *settings: str, ranks: int = 2, real: bool = True) -> tuple[Command, list[int]]:
    """A run that has recorded a few measured steps on all ranks, and how many each."""
    begun = Command(folder)
    given = [word for setting in (f"launch.nproc={ranks}", *settings) for word in ("--set", setting)]
    begun.begin("train", "--json", *ENDLESS, *given, real=real)
    return begun, begun.wait_for_rows(6, ranks)


def _pid_of(run: Run, rank: int) -> int:
    for pid in rank_pids(WORKER_MODULE, run):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in words:
            return pid
    raise AssertionError(f"no process runs rank {rank}")


def _check_partial(run: Run, record: RunRecord) -> None:
    assert any("partial" in warning for warning in record.warnings)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["steps"] >= 3


@pytest.mark.parametrize("sync", [pytest.param(name, marks=() if name == "ddp" else MATRIX) for name in STRATEGIES])
def test_kill_9_of_a_rank(tmp_path: Path, sync: str) -> None:
    ranks = 2 + STRATEGIES[sync].servers
    begun, written = started(tmp_path, f"sync.name={sync}", ranks=ranks)
    os.kill(_pid_of(begun.run, ranks - 1), signal.SIGKILL)
    ended = begun.end()
    killed = f"{ranks_under(sync, ranks).title(ranks - 1)} was killed by SIGKILL"
    record = check(ended, 3, Status.FAILED, killed, rows=written, rank=ranks - 1)
    assert ended.error["kind"] == "worker"
    _check_partial(ended.run, record)
    failure = record.failure
    assert failure is not None and (failure.rank, failure.log) == (ranks - 1, f"logs/rank_{ranks - 1}.log")


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_launcher_told_to_stop(tmp_path: Path, signum: signal.Signals, exit_code: int) -> None:
    begun, written = started(tmp_path, real=signum is signal.SIGINT)
    assert begun.process is not None
    begun.process.send_signal(signum)
    ended = begun.end()
    record = check(ended, exit_code, Status.INTERRUPTED, f"stopped by {signum.name}", rows=written)
    assert ended.error["kind"] == "interrupted"
    _check_partial(ended.run, record)
    header, *lines = ended.run.rank_file(0).read_text().splitlines()
    assert {line.count(",") for line in lines} == {header.count(",")}, "no torn line"


def test_impatient_user(tmp_path: Path) -> None:
    begun, written = started(tmp_path, real=False)
    assert begun.process is not None
    for _ in range(3):
        begun.process.send_signal(signal.SIGINT)
    ended = begun.end()
    check(ended, 130, Status.INTERRUPTED, rows=written)


def test_kill_9_of_the_launcher(tmp_path: Path) -> None:
    begun, written = started(tmp_path)
    assert begun.process is not None
    begun.process.kill()
    ended = begun.end()
    check(ended, -signal.SIGKILL, Status.LOST, rows=written)


@pytest.mark.parametrize(
    "arguments",
    [("probe", "--nproc", "2", "--device", "cpu"), ("solve", "sst2", "--steps", "10000000")],
    ids=lambda words: words[0],
)
def test_what_trains_nothing_is_stopped_too(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    begun = Command(tmp_path)
    process = begun.begin(*arguments, "--json", real=True, bare=True)
    wait_until(lambda: [run.status for run in begun.runs] == [Status.RUNNING], "the run to begin")
    wait_until(lambda: arguments[0] == "solve" or _trial_processes(process.pid) == 2, "the trial processes")
    process.terminate()
    ended = begun.end()
    settled(ended, ended.run, 143, Status.INTERRUPTED, "stopped by SIGTERM")
    assert ended.error["kind"] == "interrupted"


def _trial_processes(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    return sum(b"dynbench.probe.child" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


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

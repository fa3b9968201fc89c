"""The launcher is killed, told to stop, or loses its reader: no process left, rows kept, status and exit code right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from multiproc.faults import ENDLESS, PHASES, TORCHRUN, Command, analyzed, check, check_rows, settled
from multiproc.launches import command, environment, wait_until
from planted import at, in_folder

from dynbench.engine.failure import last_position
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.runs.run import Run, RunRecord, Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

MERGE = "import planted, dynbench.experiment.training as t; planted.plant_in_launcher('killed', t, '_result')"


def started(folder: Path, real: bool) -> tuple[Command, list[int]]:
    """A run that has recorded a few measured steps on all ranks, and how many each."""
    begun = Command(folder)
    begun.begin("train", "--json", *ENDLESS, real=real)
    return begun, begun.wait_for_rows(6)


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


@pytest.mark.matrix
def test_kill_9_of_a_rank(tmp_path: Path) -> None:
    begun, written = started(tmp_path, real=True)
    os.kill(_pid_of(begun.run, 1), signal.SIGKILL)
    ended = begun.end()
    record = check(ended, 3, Status.FAILED, "rank 1 was killed by SIGKILL", rows=written, rank=1)
    _check_partial(ended.run, record)


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


@pytest.mark.matrix
def test_kill_9_of_the_launcher(tmp_path: Path) -> None:
    begun, written = started(tmp_path, real=True)
    assert begun.process is not None
    begun.process.kill()
    ended = begun.end()
    check(ended, -signal.SIGKILL, Status.LOST, rows=written)


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


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase == "mid-run" else pytest.mark.matrix) for phase in PHASES]
)
def test_the_launcher_is_killed(tmp_path: Path, phase: str) -> None:
    """By rank 0, so that it is known where the ranks are."""
    name, step, _, rows = PHASES[phase]
    ended = Command(tmp_path).ran("train", "--json", first=at("launcher killed", name, step=step))
    check(ended, -signal.SIGKILL, Status.LOST, rows=rows)


def test_the_launcher_is_killed_while_it_merges(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", "--json", first=MERGE)
    check(ended, -signal.SIGKILL, Status.COMPLETED, rows=8)
    assert not list(ended.run.ranks_dir.glob("at_*")), "every rank came to its end"


@pytest.mark.matrix
def test_rank_0_is_killed_while_it_merges(tmp_path: Path) -> None:
    """Where the user launched the ranks: rank 0 does there what else the launcher does."""
    ended = Command(tmp_path).ran("train", "--json", first=MERGE, under=TORCHRUN)
    assert (ended.code, ended.run.status) == (1, Status.COMPLETED), ended.stderr
    check_rows(ended.run, 8)
    analyzed(ended)


WORKING = {
    "probe": ("probe", "--nproc", "2", "--device", "cpu"),
    "solve": ("solve", "sst2", "--steps", "10000000"),
    "bench": ("bench", "collectives", "--set", "iterations=1000000"),
    "compare": ("compare", *ENDLESS),
}
BARE = ("probe", "solve")
"""Commands that no settings are added to."""


def _is_at_work(command: Command, name: str) -> bool:
    if [run.status for run in command.runs[:1]] != [Status.RUNNING]:
        return False
    if name == "bench":
        place = last_position(command.run, 1)
        return place is not None and place.phase.startswith("measuring")
    return name == "solve" or len(in_folder(command.work)) >= 4


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if name in BARE and how == "SIGTERM" else pytest.mark.matrix)
        for name in WORKING
        for how in ("SIGINT", "SIGINT twice", "SIGTERM", "SIGKILL")
    ],
)
def test_what_trains_no_single_run_is_stopped_too(tmp_path: Path, name: str, how: str) -> None:
    command = Command(tmp_path)
    process = command.begin(*WORKING[name], "--json", bare=name in BARE)
    signum = signal.Signals[how.partition(" ")[0]]
    wait_until(lambda: _is_at_work(command, name), "its processes at their work")
    written = command.wait_for_rows() if name == "compare" else None
    process.send_signal(signum)
    if how.endswith("twice"):
        time.sleep(0.01)  # two signals that are pending at once are one
        process.send_signal(signum)
    ended = command.end()
    first = ended.runs[0]
    if signum is signal.SIGKILL:
        settled(ended, first, -signum, Status.LOST)
    else:
        settled(ended, first, 128 + signum, Status.INTERRUPTED, f"stopped by {signum.name}")
        assert ended.error["kind"] == "interrupted"
    if written is not None:
        check_rows(ended.run, written)
        analyzed(ended)

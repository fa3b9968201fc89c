"""The launcher is killed, told to stop, or loses its reader: no process left, rows kept, status and exit code right."""

from __future__ import annotations

import signal
import time
from itertools import product
from pathlib import Path

import pytest
from multiproc.faults import ENDLESS, PHASES, TORCHRUN, Command, analyzed, check, check_rows, settled
from multiproc.launches import wait_until
from planted import at, in_folder
from sampled import sampled

from dynbench.analysis.rank_files import read_rank_file
from dynbench.engine.failure import last_position
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

MERGE = "import planted, dynbench.experiment.training as t; planted.plant_in_launcher('killed', t, '_result')"


@pytest.mark.matrix
def test_a_run_whose_reader_goes_away_is_completed(tmp_path: Path) -> None:
    command = Command(tmp_path)
    process = command.begin("train", real=True)
    assert process.stdout is not None and process.stderr is not None and process.stderr.readline()
    for stream in (process.stdout, process.stderr):
        stream.close()
    assert process.wait(300) == 141
    (run,) = command.runs
    assert (run.status, run.record().exit_code) == (Status.COMPLETED, 0)


@pytest.mark.parametrize("phase", sampled(PHASES, ["mid-run"]))
def test_the_launcher_is_killed(tmp_path: Path, phase: str) -> None:
    """By rank 0, so that it is known where the ranks are."""
    name, step, _, rows = PHASES[phase]
    ended = Command(tmp_path).ran("train", first=at("launcher killed", name, step=step))
    check(ended, -signal.SIGKILL, Status.LOST, rows=rows)


def test_the_launcher_is_killed_while_it_merges(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", first=MERGE)
    check(ended, -signal.SIGKILL, Status.COMPLETED, rows=8)
    assert not list(ended.run.ranks_dir.glob("at_*")), "every rank came to its end"


@pytest.mark.matrix
def test_rank_0_is_killed_while_it_merges(tmp_path: Path) -> None:
    """Where the user launched the ranks: rank 0 does there what else the launcher does."""
    ended = Command(tmp_path).ran("train", first=MERGE, under=TORCHRUN)
    assert (ended.code, ended.run.status) == (1, Status.COMPLETED), ended.stderr
    check_rows(ended.run, 8)
    analyzed(ended)


WORKING = {
    "train": ("train", *ENDLESS),
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


IN_MAKE_TEST = [
    *(("train", how) for how in ("SIGTERM", "SIGINT", "SIGINT twice")),
    *((name, "SIGTERM") for name in ("probe", "solve")),
]


@pytest.mark.parametrize(
    ("name", "how"), sampled(product(WORKING, ("SIGINT", "SIGINT twice", "SIGTERM", "SIGKILL")), IN_MAKE_TEST)
)
def test_a_command_is_stopped(tmp_path: Path, name: str, how: str) -> None:
    command = Command(tmp_path)
    process = command.begin(*WORKING[name], bare=name in BARE)
    signum = signal.Signals[how.partition(" ")[0]]
    wait_until(lambda: _is_at_work(command, name), "its processes at their work")
    written = command.wait_for_rows(6) if name in ("train", "compare") else None
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
        said = analyzed(ended)["runs"][0]
    if name == "train" and how in ("SIGTERM", "SIGINT"):
        assert said["summary"]["partial"] is True and said["summary"]["steps"] >= 3
        assert read_rank_file(0, first.rank_file(0)).torn_lines == 0
        assert any("partial" in warning for warning in first.record().warnings)

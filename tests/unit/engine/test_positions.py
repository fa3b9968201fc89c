"""Where a rank is stands in its file at once, whatever becomes of the process, and is gone once it has arrived."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynbench.engine.failure import BUILDING, Position, PositionFile, last_position, unfinished_ranks
from dynbench.runs.run import Run

KILLED = """\
import os, signal, sys, pathlib
from dynbench.engine.failure import PositionFile
from dynbench.runs.run import Run
here = PositionFile()
here.open(Run(pathlib.Path(sys.argv[1])), 1)
here.at_step(7)
here.at("forward")
here.at("sync")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.ranks_dir.mkdir()
    return run


@pytest.mark.slow
def test_what_a_killed_process_was_at(run: Run) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(run.path)], check=False).returncode == -9
    assert last_position(run, 1) == Position(7, "sync") and unfinished_ranks(run) == [1]


def test_before_and_between_steps_and_after_all(run: Run) -> None:
    here = PositionFile()
    here.at("forward")
    assert last_position(run, 0) is None, "it was not told in which run"
    here.open(run, 0)
    assert last_position(run, 0) is None, "it has begun nothing"
    here.at(BUILDING)
    assert str(last_position(run, 0)) == "while building its model"
    here.at_step(0)
    here.at("x" * 200)
    assert last_position(run, 0) == Position(0, "x" * 93)
    here.at("plan")
    assert str(last_position(run, 0)) == "in plan of step 0"
    here.remove()
    assert last_position(run, 0) is None and unfinished_ranks(run) == []


def test_another_launch_of_the_same_run_begins_anew(run: Run) -> None:
    for phase in ("measuring a long name", ""):
        here = PositionFile()
        here.open(run, 0)
        if phase:
            here.at(phase)
    assert last_position(run, 0) is None


def test_in_order() -> None:
    places = [
        Position(None, "meeting the other ranks"),
        Position(None, BUILDING),
        Position(0, "plan"),
        Position(0, "sync"),
    ]
    places += [Position(0, "recording"), Position(1, "plan")]
    assert sorted(places, key=lambda place: place.progress) == places


def test_a_file_that_is_no_note_says_nothing(run: Run) -> None:
    (run.ranks_dir / "at_0").write_bytes(b"\xff\xfe")
    assert last_position(run, 0) is None and last_position(run, 5) is None

"""Where a rank is stands in its file at once, whatever becomes of the process, and is gone once it has arrived."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynbench.engine.whereabouts import BUILDING, Place, Whereabouts, last_seen, not_arrived
from dynbench.runs.run import Run

KILLED = """\
import os, signal, sys, pathlib
from dynbench.engine.whereabouts import Whereabouts
from dynbench.runs.run import Run
here = Whereabouts()
here.keep(Run(pathlib.Path(sys.argv[1])), 1)
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
    assert last_seen(run, 1) == Place(7, "sync") and not_arrived(run) == [1]


def test_before_and_between_steps_and_after_all(run: Run) -> None:
    here = Whereabouts()
    here.at("forward")
    assert last_seen(run, 0) is None, "it was not told in which run"
    here.keep(run, 0)
    assert last_seen(run, 0) is None, "it has begun nothing"
    here.at(BUILDING)
    assert str(last_seen(run, 0)) == "while building its model"
    here.at_step(0)
    here.at("x" * 200)
    assert last_seen(run, 0) == Place(0, "x" * 94)
    here.at("plan")
    assert str(last_seen(run, 0)) == "in plan of step 0"
    here.arrived()
    assert last_seen(run, 0) is None and not_arrived(run) == []


def test_another_launch_of_the_same_run_begins_anew(run: Run) -> None:
    for phase in ("measuring a long name", ""):
        here = Whereabouts()
        here.keep(run, 0)
        if phase:
            here.at(phase)
    assert last_seen(run, 0) is None


def test_in_order() -> None:
    places = [Place(None, "meeting the other ranks"), Place(None, BUILDING), Place(0, "plan"), Place(0, "sync")]
    places += [Place(0, "recording"), Place(1, "plan")]
    assert sorted(places, key=lambda place: place.progress) == places


def test_a_file_that_is_no_note_says_nothing(run: Run) -> None:
    (run.ranks_dir / "at_0").write_bytes(b"\xff\xfe")
    assert last_seen(run, 0) is None and last_seen(run, 5) is None

"""Folders that are moved or shared, a clock that is set back: nothing is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen
from multiproc.faults import NAME, Command, analyzed, check, printed_by

from dynbench.runs.run import Run, Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

BACK = "import planted; planted.clock_that_steps_back()"


def test_a_run_moved_to_another_machine(tmp_path: Path) -> None:
    whole = Command(tmp_path / "whole").ran("train")
    check(whole, 0, Status.COMPLETED, rows=8)
    before = analyzed(whole)
    moved = Run(tmp_path / NAME / whole.run.id)
    shutil.copytree(whole.run.path, moved.path)
    record = json.loads(moved.record_file.read_text())
    moved.record_file.write_text(json.dumps({**record, "host": "another-machine"}))
    code, said = printed_by(moved.path.parent, "analyze", whole.run.id)
    assert code == 0 and said["runs"] == before["runs"] and moved.status is Status.COMPLETED
    assert all(Path(path).is_relative_to(moved.path) for path in said["files"])
    code, said = printed_by(moved.path.parent, "report", whole.run.id)
    assert code == 0 and str(whole.store.root) not in (moved.path / "report.en.md").read_text()


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Step times do not come from it, order and length of a run do."""
    ended = Command(tmp_path).ran("train", first=BACK)
    record = check(ended, 0, Status.COMPLETED, rows=8)
    assert record.ended is not None and record.started is not None and record.ended < record.started
    code, said = printed_by(ended.store.root, "runs", "show", "@latest")
    assert code == 0 and said["run"]["duration_s"] is None
    assert analyzed(ended)["runs"][0]["summary"]["step_time_ms"]["mean"] > 0


MAKERS = 16
MAKE_RUNS = """\
import sys, pathlib
import dynbench.runs.run as names
from datetime import datetime
from dynbench.runs.store import RunStore
class Clock(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 1, 1, tzinfo=tz)
names.datetime, names._SUFFIX_ALPHABET, names._SUFFIX_LENGTH = Clock, "abc", 3
print(RunStore(pathlib.Path(sys.argv[1])).create("train", "x", name=sys.argv[2]).id)
"""


def test_many_at_once_make_as_many_runs(tmp_path: Path) -> None:
    """In one second, with 27 suffixes to draw from, so that many draw one that is taken."""
    root = tmp_path / NAME
    makers = [
        ForkedPopen([sys.executable, "-c", MAKE_RUNS, str(root), f"n{number}"], stdout=subprocess.PIPE, text=True)
        for number in range(MAKERS)
    ]
    ids = {maker.communicate(timeout=300)[0].strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * MAKERS and len(ids) == MAKERS
    code, said = printed_by(root, "runs", "ls")
    assert code == 0 and {run["id"] for run in said["runs"]} == ids

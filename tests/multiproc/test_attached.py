"""`train` inside torchrun is a worker: one run folder, nothing launched."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forked import ForkedPopen
from multiproc.faults import TORCHRUN
from multiproc.launches import command, environment, rows_of
from pixel import UNRENDERED

from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc


def under_torchrun(results: Path, *arguments: str, figures: bool = False) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that a user's torchrun runs on every rank."""
    python, *words = command(*arguments, figures=figures)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment(results)}
    process = ForkedPopen([python, *TORCHRUN, *words], forks=True, first=UNRENDERED, **pipes)
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def test_inside_torchrun(tmp_path: Path) -> None:
    code, stdout, stderr = under_torchrun(
        tmp_path, "train", "--json", "--name", "inner", "--subset", "1000000", figures=True
    )
    assert code == 0, stderr
    printed = json.loads(stdout)
    runs = RunStore(tmp_path).list()
    assert [run.id for run in runs] == [printed["run"]["id"]]
    assert runs[0].status is Status.COMPLETED and runs[0].name == "inner"
    assert rows_of(runs[0]).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert printed["summary"]["world_size"] == 2
    assert printed["figures"] and all(Path(figure).is_file() for figure in printed["figures"])
    assert runs[0].config().launch.nproc == 2
    assert len([warning for warning in runs[0].record().warnings if "1000000 of" in warning]) == 1


def test_a_mistake_inside_torchrun_is_told_once(tmp_path: Path) -> None:
    RunStore(tmp_path).create("train", "static", name="taken")
    _, stdout, stderr = under_torchrun(tmp_path, "train", "--json", "--name", "taken")
    assert json.loads(stdout)["error"]["kind"] == "run"
    assert "bug in dynbench" not in stderr

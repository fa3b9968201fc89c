"""`train` inside torchrun is a worker: one run folder, nothing launched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from multiproc.launches import command, environment, rows_of

from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc


def test_inside_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    inner = command("train", "--json", "--name", "inner", "--subset", "1000000", figures=True)[1:]
    finished = subprocess.run(
        [*torchrun, *inner], env=environment(tmp_path), capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr
    printed = json.loads(finished.stdout)
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
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    inner = command("train", "--json", "--name", "taken")[1:]
    ended = subprocess.run([*torchrun, *inner], env=environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert json.loads(ended.stdout)["error"]["kind"] == "run"
    assert "bug in dynbench" not in ended.stderr

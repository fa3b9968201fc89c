"""A disk that is full or must not be written: what was measured is kept, and one line says what to do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from multiproc.faults import (
    ENDLESS,
    Command,
    analyzed,
    check,
    check_rows,
    recipe_of,
    settled,
)
from pixel import UNRENDERED
from planted import at
from sampled import sampled

from dynbench.analysis.rank_files import read_rank_file
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

SUMMARISES = "import planted, dynbench.experiment.training as t; planted.plant_in_launcher('no room', t, '_result')"
JUDGES = (
    f"{UNRENDERED}; import planted, dynbench.experiment.compare as c; "
    "planted.plant_in_launcher('room for a record', c, '_analyze')"
)
ARGUMENTS = {
    "train": ("train",),
    "probe": ("probe",),
    "compare": ("compare",),
    "bench": ("bench", "collectives"),
}


def test_the_disk_fills_while_rows_are_written(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", first=at("disk full", "plan", rank=1, step=4))
    check(ended, 2, Status.FAILED, "rank 1: ", "rank_1.csv: File too large", rows=4, rank=1)
    assert read_rank_file(1, ended.run.rank_file(1)).torn_lines == 1
    assert ended.error["kind"] == "storage" and "Free some space" in ended.error["hint"]


@pytest.mark.matrix
def test_the_disk_fills_while_a_comparison_is_judged(tmp_path: Path) -> None:
    command = Command(tmp_path)
    ended = command.ran("compare", recipe_of(tmp_path), "--name", "demo", first=JUDGES)
    comparison, *arms = ended.runs
    settled(ended, comparison, 2, Status.FAILED, "File too large")
    assert "dynbench compare --resume demo" in ended.error["hint"]
    for arm in arms:
        assert arm.status is Status.COMPLETED
        check_rows(arm, 8)
    command.ran("compare", "--resume", "demo", first=UNRENDERED)
    settled(command, comparison, 0, Status.COMPLETED)
    trained = [run for run in command.runs if run.record().command == "train"]
    assert len(trained) == len(arms), "no launch is repeated"


def test_the_disk_fills_while_summaries_are_written(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", first=SUMMARISES)
    assert (ended.code, ended.run.status) == (2, Status.COMPLETED), ended.stderr
    assert "File too large while summarising; the run itself is complete" in ended.error["message"]
    assert f"dynbench analyze {ended.run.id}" in ended.error["hint"]
    ended.code = 0
    check(ended, 0, Status.COMPLETED, rows=8)


@pytest.mark.parametrize("name", sampled(ARGUMENTS, ["train"]))
def test_results_that_must_not_be_written(tmp_path: Path, name: str) -> None:
    command = Command(tmp_path)
    command.store.root.mkdir(mode=0o500)
    ended = command.ran(*ARGUMENTS[name], first="import planted; planted.powerless()")
    assert ended.code == 2, ended.stderr
    assert ended.error["message"] == f"{command.store.root}: the results folder cannot be written: Permission denied"
    assert "--results" in ended.error["hint"] and not list(command.store.root.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "dynbench-test", str(folder)], check=False)
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.matrix
@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount(8)")
def test_a_small_disk(small_disk: Path) -> None:
    """Really full: rows and summaries find no room, the end is written in the room kept for it."""
    command = Command(small_disk)
    command.begin("train", *ENDLESS)
    written = command.wait_for_rows(8)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))
    ended = command.end()
    (small_disk / "filler").unlink()
    check(ended, 2, Status.FAILED, "No space left on device", rows=written)
    assert "Free some space" in ended.error["hint"]
    assert analyzed(ended)["runs"][0]["summary"]["steps"] >= 6

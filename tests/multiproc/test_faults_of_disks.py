"""A disk that is full or must not be written: what was measured is kept, and one line says what to do."""

from __future__ import annotations

import json
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
    printed_by,
    recipe_of,
    settled,
)
from pixel import UNRENDERED
from planted import at

from dynbench.analysis.rank_files import read_rank_file
from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

FILLS = at("disk full", "plan", rank=1, step=4)
FILLS_BENCH = at("disk full", "measuring all_reduce 0.75 MiB float32 gloo x2")
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
    ended = Command(tmp_path).ran("train", "--json", first=FILLS)
    check(ended, 2, Status.FAILED, "rank 1: ", "rank_1.csv: File too large", rows=4, rank=1)
    assert read_rank_file(1, ended.run.rank_file(1)).torn_lines == 1
    assert ended.error["kind"] == "storage" and "Free some space" in ended.error["hint"]


@pytest.mark.matrix
def test_the_disk_fills_under_a_comparison(tmp_path: Path) -> None:
    """No arm is to blame: they stay together when the comparison goes on."""
    ended = Command(tmp_path).ran("compare", recipe_of(tmp_path), "--name", "demo", "--json", first=FILLS)
    comparison, *arms = ended.runs
    settled(ended, comparison, 2, Status.FAILED, "rank_1.csv: File too large", rank=1)
    assert "dynbench compare --resume demo" in ended.error["hint"] and "start anew" not in ended.error["hint"]
    assert read_state(comparison.path).groups == (("static", "partition"),)
    for arm in arms:
        check_rows(arm, 3)
        assert printed_by(ended.store.root, "analyze", arm.id)[0] == 0


@pytest.mark.matrix
def test_the_disk_fills_under_a_benchmark(tmp_path: Path) -> None:
    command = Command(tmp_path)
    sizes = ("--no-figures", "--set", "sizes_mib=0.25,0.5,0.75")
    ended = command.ran("bench", "collectives", "--json", *sizes, first=FILLS_BENCH)
    settled(ended, ended.run, 2, Status.FAILED, "rank 0: ", "rows.jsonl: File too large", rank=0)
    before = json.loads(ended.stdout)["rows"]
    assert len(before) == 2 and f"dynbench bench --resume {ended.run.id}" in ended.error["hint"]
    command.ran("bench", "--resume", ended.run.id, "--json", "--no-figures", bare=True)
    settled(command, command.run, 0, Status.COMPLETED)
    resumed = json.loads(command.stdout)["rows"]
    assert resumed[:2] == before and len(resumed) == 3


@pytest.mark.matrix
def test_the_disk_fills_while_a_comparison_is_judged(tmp_path: Path) -> None:
    command = Command(tmp_path)
    ended = command.ran("compare", recipe_of(tmp_path), "--name", "demo", "--json", first=JUDGES)
    comparison, *arms = ended.runs
    settled(ended, comparison, 2, Status.FAILED, "File too large")
    assert "dynbench compare --resume demo" in ended.error["hint"]
    for arm in arms:
        assert arm.status is Status.COMPLETED
        check_rows(arm, 8)
    command.ran("compare", "--resume", "demo", "--json", bare=True, first=UNRENDERED)
    settled(command, comparison, 0, Status.COMPLETED)
    trained = [run for run in command.runs if run.record().command == "train"]
    assert len(trained) == len(arms), "no launch is repeated"


def test_the_disk_fills_while_summaries_are_written(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", "--json", first=SUMMARISES)
    assert (ended.code, ended.run.status) == (2, Status.COMPLETED), ended.stderr
    assert "File too large while summarising; the run itself is complete" in ended.error["message"]
    assert f"dynbench analyze {ended.run.id}" in ended.error["hint"]
    ended.code = 0
    check(ended, 0, Status.COMPLETED, rows=8)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "train" else pytest.mark.matrix) for name in ARGUMENTS]
)
def test_results_that_must_not_be_written(tmp_path: Path, name: str) -> None:
    command = Command(tmp_path)
    command.store.root.mkdir(mode=0o500)
    ended = command.ran(*ARGUMENTS[name], "--json", first="import planted; planted.powerless()")
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
    command.begin("train", "--json", *ENDLESS)
    written = command.wait_for_rows(8)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))
    ended = command.end()
    (small_disk / "filler").unlink()
    check(ended, 2, Status.FAILED, "No space left on device", rows=written)
    assert "Free some space" in ended.error["hint"]
    assert analyzed(ended)["runs"][0]["summary"]["steps"] >= 6

"""A disk that is full or must not be written: what was measured is kept, and one line says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from multiproc.faults import (
    Command,
    check,
    check_rows,
    printed_by,
    recipe_of,
    settled,
)
from pixel import UNRENDERED
from planted import at

from dynbench.analysis.rank_files import read_rank_file
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

SUMMARISES = "import planted, dynbench.experiment.training as t; planted.plant_in_launcher('no room', t, '_result')"
JUDGES = (
    f"{UNRENDERED}; import planted, dynbench.experiment.compare as c; "
    "planted.plant_in_launcher('room for a record', c, '_analyze')"
)


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


@pytest.mark.parametrize("words", ["train", "probe", "compare", "bench collectives"])
def test_results_that_cannot_be_written(tmp_path: Path, words: str) -> None:
    (tmp_path / "file").touch()
    code, said = printed_by(tmp_path / "file" / "below", *words.split())
    assert code == 2 and "below: the results folder cannot be written: " in said["error"]["message"]
    assert "--results" in said["error"]["hint"]

"""Code of the user's own on real ranks: a workload of the current folder, and a plug-in of every kind from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from multiproc.faults import Command
from multiproc.launches import TINY, rows_of, sets
from own import write_own

from dynbench.runs.run import Status

pytestmark = pytest.mark.multiproc

OWN = (*(one for one in TINY if not one.startswith("workload.")), "workload.max_length=24")


def trained(folder: Path, workload: str, *more: str, body: str = "    pass\n") -> Command:
    """A training that is started in the folder of a module of the user's own."""
    command = Command(folder)
    write_own(command.work, body)
    return command.ran("train", "--workload", workload, *more, *sets(*OWN), bare=True)


def test_a_module_of_the_current_folder_trains_on_real_ranks(tmp_path: Path) -> None:
    ended = trained(tmp_path, "mine:Mine", "--mode", "dynamic")
    assert ended.code == 0, ended.stderr
    summary, stored = ended.said["summary"], ended.run.config().workload
    assert summary["rows"] == 2 * (2 + 6)
    assert summary["eval"]["accuracy"] is None and summary["eval"]["loss"] > 0
    assert (stored.name, stored.import_from, len(stored.code_digest)) == ("mine:Mine", str(ended.work), 16)
    data = ended.run.env()["data"]["workload"]
    assert data["digest"] == stored.code_digest and list(data["beside"]) == ["length_regression.py"]


def test_an_error_in_its_step_is_one_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    body = "    def loss(self, model, batch):\n        return model(batch['words'])\n"
    ended = trained(tmp_path, "mine.py:Mine", "--launcher", "virtual", body=body)
    assert (ended.code, ended.error["kind"], ended.run.status) == (3, "worker", Status.FAILED)
    assert "mine.py:6: KeyError: 'words'" in ended.error["message"] and "\n" not in ended.error["message"]
    assert "Traceback" not in ended.stderr
    assert "Traceback" in (ended.run.logs_dir / "rank_0.log").read_text(encoding="utf-8")


FILE = str(Path(__file__).parents[1] / "toy_plugins.py")
DATA = ("workload.name=noted", "workload.note=seen", "workload.dataset=few_words", "workload.words=48")
SHORT = (*(one for one in TINY if "subset" not in one), *DATA, "train.warmup_steps=0", "train.steps=2")
RECIPE = """\
description: a policy of one's own against static
arms:
  - name: static
  - name: turned
    set: {schedule.policy: turned, schedule.turns: 1}
launches: 2
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """One whose processes find the plug-ins."""
    monkeypatch.setenv("DYNBENCH_PLUGINS", FILE)
    return Command(tmp_path)


def started(command: Command, *arguments: str) -> dict[str, Any]:
    """What it says; plug-ins are found on import, which what is forked has behind it."""
    command.begin(*arguments, real=True, bare=True)
    assert command.end().code == 0, command.stderr
    return command.said


@pytest.mark.matrix
def test_every_kind_trains_with_its_options(command: Command) -> None:
    chosen = ("schedule.policy=turned", "schedule.turns=1", "sync.name=one_by_one", "sync.divide_late=true")
    compressed = ("compress.name=rounded", "compress.digits=4", "launch.launcher=torchrun")
    started(command, "train", *sets(*SHORT, *chosen, *compressed))
    rows, env = rows_of(command.run), command.run.env()
    assert rows["divided_late"].to_list() == [1] * 4
    assert (rows["bytes_wire"] > 0).all()
    assert env["data"]["note"] == "seen"
    assert env["data"]["train"]["samples"] <= 48
    assert list(env["plugins"]) == ["toy_plugins.py"]


@pytest.mark.matrix
def test_a_benchmark_of_ones_own(command: Command) -> None:
    (row,) = started(command, "bench", "nothing", *sets("rounds=2"))["rows"]
    assert (row["case"], row["n"], row["p50"], row["ranks"]) == ("nothing", 2, 0.0, 1)
    assert list(command.run.env()["plugins"]) == ["toy_plugins.py"]


@pytest.mark.matrix
def test_compared_reported_and_planned(command: Command) -> None:
    recipe = command.work / "own.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    virtual = ("launch.launcher=virtual", "launch.world_size=2")
    found = started(command, "compare", str(recipe), "--name", "own", *sets(*SHORT, *virtual))
    assert [arm["name"] for arm in found["arms"]] == ["static", "turned"]
    assert found["comparison"]["level"] == "step"
    assert "`schedule.turns`" in Path(started(command, "report", "own")["path"]).read_text(encoding="utf-8")

    words = ["--policy", "static,turned", "--world-size", "4", "--batch-per-rank", "2", "--steps", "3", "--no-figures"]
    plans = started(command, "solve", "--dataset", "few_words", *words, *sets("schedule.turns=3"))
    assert {line["policy"] for line in plans["results"]} == {"static", "turned"}

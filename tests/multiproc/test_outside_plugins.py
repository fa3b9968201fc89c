"""A plug-in of every kind from a file of the user's own, through train, solve, compare and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from multiproc.launches import TINY, rows_of, start

from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

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


def dynbench(root: Path, *arguments: str) -> dict:
    process = start(root, *arguments, "--json", settings=(), DYNBENCH_PLUGINS=FILE)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out)


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_every_kind_trains_with_its_options(tmp_path: Path) -> None:
    chosen = ("schedule.policy=turned", "schedule.turns=1", "sync.name=one_by_one", "sync.divide_late=true")
    compressed = ("compress.name=rounded", "compress.digits=4", "launch.launcher=torchrun")
    dynbench(tmp_path, "train", *sets(*SHORT, *chosen, *compressed), "--name", "toys")

    run = RunStore(tmp_path).resolve("toys")
    rows, env = rows_of(run), run.env()
    assert rows["divided_late"].to_list() == [1] * 4
    assert (rows["bytes_wire"] > 0).all()
    assert env["data"]["note"] == "seen"
    assert env["data"]["train"]["samples"] <= 48
    assert list(env["plugins"]) == ["toy_plugins.py"]


@pytest.mark.matrix
def test_a_benchmark_of_ones_own(tmp_path: Path) -> None:
    (row,) = dynbench(tmp_path, "bench", "nothing", "--set", "rounds=2", "--name", "timed")["rows"]
    assert (row["case"], row["n"], row["p50"], row["ranks"]) == ("nothing", 2, 0.0, 1)
    assert list(RunStore(tmp_path).resolve("timed").env()["plugins"]) == ["toy_plugins.py"]


@pytest.mark.matrix
def test_compared_reported_and_planned(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    virtual = ("launch.launcher=virtual", "launch.world_size=2")
    found = dynbench(tmp_path, "compare", str(recipe), "--name", "own", *sets(*SHORT, *virtual))
    assert [arm["name"] for arm in found["arms"]] == ["static", "turned"]
    assert found["comparison"]["level"] == "step"
    text = Path(dynbench(tmp_path, "report", "own")["path"]).read_text(encoding="utf-8")
    assert "`schedule.turns`" in text

    words = ["--policy", "static,turned", "--world-size", "4", "--batch-per-rank", "2", "--steps", "3", "--no-figures"]
    plans = dynbench(tmp_path, "solve", "--dataset", "few_words", *words, "--set", "schedule.turns=3")
    assert {line["policy"] for line in plans["results"]} == {"static", "turned"}

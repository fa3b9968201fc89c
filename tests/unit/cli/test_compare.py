"""`dynbench compare`: its options, arms and sweeps from the command line, and what it prints; nothing is launched."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from compared import compared
from recipe_files import load_cells
from said import Cli

from dynbench.cli import common, compare_plan
from dynbench.cli.console import LAUNCHES, TRAINING, display
from dynbench.config.layers import load_config
from dynbench.config.recipes import RECIPE_FILE
from dynbench.config.schema import dump_config
from dynbench.engine.launching.progress import Progress
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.experiment.launch_plan import LaunchState
from dynbench.experiment.launches import CompareProgress
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

PART = "--arm part:policy=partition,window=1"
ARMS = f"--arm static:schedule.mode=static {PART}"
TWO = "--device cpu --nproc 2"
SMALL = f"{TWO} --set train.steps=4 --set train.warmup_steps=0"
SWEEP = f"{ARMS} {SMALL} --over train.global_batch=8,16 --over seed=1,2"

Started = list[tuple[Run, RunStore]]
Compare = Callable[..., dict[str, Any]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The comparisons that would be run, and among which runs, in place of running them."""
    runs: Started = []

    def stop(run: Run, store: RunStore, _: object) -> None:
        runs.append((run, store))
        raise KeyboardInterrupt

    monkeypatch.setattr("dynbench.cli.compare._run", stop)
    return runs


@pytest.fixture
def compare(store: RunStore, cli: Cli, started: Started) -> Compare:
    return lambda line, code=0: cli(f"compare --json {line}", code=code).json


LINES = {"one": f"{ARMS} {SMALL}", "cells": SWEEP, "recipe": f"quickstart {PART} {SMALL}"}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_a_dry_run_prints_is_the_recipe_that_is_saved_and_that_runs_alike(compare, cli, store, tmp_path, line):
    file, printed = tmp_path / "mine.yaml", tmp_path / "printed.yaml"
    line = line.replace("part:", "mine:") + " --dry-run"
    shown = compare(f"{line} --save-recipe {file}")
    printed.write_text(cli(f"compare {line}").out)
    assert load_cells(printed)[0].arms == load_cells(file)[0].arms
    again = compare(f"{file} --dry-run")
    for facts in (shown, again):
        for plan in facts.get("cells", [facts]):
            plan.pop("recipe")
    assert again == shown and not store.root.exists()


def test_the_file_is_never_overwritten_and_not_left_by_what_is_refused(compare, tmp_path):
    file = tmp_path / "mine.yaml"
    line = f"{ARMS} {SMALL} --dry-run --save-recipe {file}"
    compare(f"{line} --arm bad:policy=prefix,buffer=3", code=2)
    assert not file.exists()
    compare(line)
    assert compare(line, code=2)["error"]["message"] == f"--save-recipe {file}: exists already"
    assert "cannot be written" in compare(f"{line}/x.yaml", code=2)["error"]["message"]


def test_a_started_comparison_is_the_recipe_of_its_arms_and_goes_on_among_its_own_launches(
    compare, store, started, tmp_path
):
    compare(f"{ARMS} {SMALL} --name mine", code=130)
    ((run, _),) = started
    (recipe,) = load_cells(run.path / RECIPE_FILE)
    assert (store.resolve("mine").id, list(recipe.arms), recipe.baseline) == (run.id, ["static", "part"], "static")
    assert "-static-part-" in run.id
    compare("--resume mine", code=130)
    there = RunStore(tmp_path / "there").create("compare", "x")
    compare(f"--resume {there.path}", code=130)
    found = [(each.id, among.root) for each, among in started[1:]]
    assert found == [(run.id, store.root), (there.id, there.path.parent)]


def test_arms_that_are_configured_alike_are_named_before_they_start(cli, started):
    said = cli(f"compare {ARMS} --arm other:mode=static {SMALL}", code=130).err
    assert "arms static and other are configured alike" in said
    assert len(started) == 1


@pytest.mark.parametrize("dry", [True, False])
def test_a_name_in_use_is_refused_before_anything_is_written_unless_it_is_replaced(compare, store, tmp_path, dry):
    store.create("compare", "older", name="mine")
    line = f"{SWEEP} --name mine --save-recipe {tmp_path}/r.yaml" + " --dry-run" * dry
    assert "in use" in compare(line, code=2)["error"]["message"]
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1, False)
    compare(f"{line} --replace", code=0 if dry else 130)
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1 if dry else 6, True)
    assert (store.resolve("mine") == store.list()[0]) == dry


@pytest.mark.parametrize("line", [f"{ARMS} {SMALL}", SWEEP], ids=["one", "cells"])
def test_of_several_nodes_the_first_has_the_name_and_writes_the_file(compare, started, tmp_path, line):
    nodes = "--launcher torchrun --nnodes 2 --rdzv-endpoint h:1 --rdzv-id i --name both"
    for rank in (0, 1):
        compare(f"{line} {nodes} --node-rank {rank} --save-recipe {tmp_path}/{rank}.yaml", code=130)
    assert [run.name for run, _ in started] == ["both", None]
    assert [(tmp_path / f"{rank}.yaml").exists() for rank in (0, 1)] == [True, False]


def test_time_is_that_of_earlier_runs_of_the_same_settings(compare, store):
    def ran(minutes: int, settings: str) -> None:
        given = f"launch.device=cpu launch.nproc=2 train.warmup_steps=0 {settings}".split()
        run = store.create("train", "x")
        write_text(run.config_file, dump_config(resolve(load_config(None, given), this_machine(), store).config))
        run.update(status="running")
        times = {"started": "2026-01-01T00:00:00+00:00", "ended": f"2026-01-01T00:{minutes:02}:00+00:00"}
        run.update(status="completed", exit_code=0, **times)

    def estimated(over: str = "") -> object:
        return compare(f"{ARMS} {SMALL} --launches 2 --dry-run {over}")["estimated_s"]

    ran(50, "train.steps=4 train.global_batch=8")
    assert estimated() is None
    ran(2, "train.steps=8 train.seed=5")
    assert estimated() == pytest.approx(4 * 60)
    ran(10, "train.steps=4 schedule.policy=partition")
    assert estimated() == pytest.approx(2 * 60 + 2 * 600)
    assert estimated("--over global_batch=64,8") == pytest.approx(2 * 660 + 4 * 3000)
    assert estimated("--over global_batch=64,10") is None


def test_without_a_terminal_every_launch_stage_and_epoch_is_one_line(capsys):
    first = [LaunchState("static", 0, 0)]
    both = [*first, LaunchState("partition", 0, 0)]
    with display(True, "starting", LAUNCHES) as shown:
        for step in (0, 1, 2):
            shown.on_launches(CompareProgress(0, 2, first, step, 2, None if step == 0 else 61.2))
        for step, epochs in enumerate([(("e1",), ()), *[(("e1", "e2"), ("f1",))] * 2]):
            shown.on_launches(CompareProgress(1, 2, both, step, 2, 7.0, epochs))
        for text in ("merging a (1 of 2)", "merging b (2 of 2)", "drawing figures"):
            shown.on_stage(text)
    with display(True, "starting", TRAINING) as shown:
        for lines in ((), ("e1",), ("e1",), ("e1", "e2")):
            shown.on_training(Progress(0, 20, 1.0, epochs=(lines,)))
    launches = ["launch 1/2  static #1", "static #1  e1", "launch 2/2  2 arms in turns #1  about 7 s left"]
    epochs = ["static #1  e2", "partition #1  f1"]
    training = [line for line in capsys.readouterr().err.splitlines() if "  1 s" not in line]
    assert training == [*launches, *epochs, "merging a (1 of 2)", "drawing figures", "e1", "e2"]


OF_SCHEDULES = {"predicted_speedup": 1.2, "overhead_share": 0.5, "recovered_share": 0.6}


@pytest.mark.parametrize(
    ("first", "second", "titles"),
    [
        ({}, {}, "speed-up"),
        ({"ci95": [1.2, 1.3]}, {}, "speed-up interval"),
        ({}, {"efficiency": 0.75}, "speed-up efficiency"),
        (OF_SCHEDULES, {}, "speed-up predicted launch overhead recovered"),
    ],
)
def test_only_columns_that_a_comparison_fills_are_shown(tmp_path, monkeypatch, capsys, first, second, titles):
    """Which are real and which virtual, and what programs read, is among the goldens."""
    monkeypatch.setattr(compare_plan, "_ranks", lambda *_: "real")
    made = [SimpleNamespace(settings={}, label="a cell", comparison="id") for _ in range(2)]
    found = [[compared(**{"speedup": 1.25, "ci95": None, **given})] for given in (first, second)]
    with common.stdout_holds("table", tells=True):
        compare_plan.show_cells(SimpleNamespace(run=Run(tmp_path), cells=made, comparisons=found, figures=[]))
    header, _, line, *_ = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == f"settings ranks arm verdict {titles}"
    assert ("75.0" in line) == ("efficiency" in titles)

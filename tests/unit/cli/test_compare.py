"""`dynbench compare`: its options, arms and sweeps from the command line, and what it prints; nothing is launched."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compared import compared
from recipe_files import load_cells
from unit.cli.conftest import Cli

from dynbench.analysis.record import Cell
from dynbench.cli import common
from dynbench.cli.compare_plan import show_cells
from dynbench.cli.console import LAUNCHES, display
from dynbench.config.layers import load_config
from dynbench.config.recipes import RECIPE_FILE
from dynbench.config.schema import dump_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.experiment.launch_plan import LaunchState
from dynbench.experiment.launches import CompareProgress
from dynbench.runs.atomic import write_json, write_text
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


def test_a_dry_run_shows_cells_and_launches_and_touches_nothing(compare, store):
    shown = compare(f"{SWEEP} --dry-run")
    assert [cell["settings"] for cell in shown["cells"]] == [
        {"train.global_batch": batch, "train.seed": seed} for batch in (8, 16) for seed in (1, 2)
    ]
    for cell in shown["cells"]:
        assert [launch["arm"] for launch in cell["launches"]] == ["static", "part", "static", "part"]
        assert {name: arm["train"]["steps"] for name, arm in cell["arms"].items()} == {"static": 4, "part": 4}
    assert (shown["estimated_s"], shown["alike"], store.root.exists()) == (None, [], False)


LINES = {"one": f"{ARMS} {SMALL}", "cells": SWEEP, "recipe": f"quickstart {PART} {SMALL}"}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_a_dry_run_prints_is_the_recipe_that_is_saved_and_that_runs_alike(compare, cli, tmp_path, line):
    file, printed = tmp_path / "mine.yaml", tmp_path / "printed.yaml"
    line = line.replace("part:", "mine:") + " --dry-run"
    shown = compare(f"{line} --save-recipe {file}")
    printed.write_text(cli(f"compare {line}").out)
    assert load_cells(printed)[0].arms == load_cells(file)[0].arms
    again = compare(f"{file} --dry-run")
    for facts in (shown, again):
        for plan in facts.get("cells", [facts]):
            plan.pop("recipe")
    assert again == shown


def test_the_file_is_never_overwritten_and_not_left_by_what_is_refused(compare, tmp_path):
    file = tmp_path / "mine.yaml"

    def save(path: Path, more: str = "", code: int = 2) -> str:
        shown = compare(f"{ARMS} {more} {SMALL} --save-recipe {path} --dry-run", code=code)
        return str(shown.get("error", {}).get("message"))

    save(file, "--arm bad:policy=prefix,buffer=3")
    assert not file.exists()
    save(file, code=0)
    assert save(file) == f"--save-recipe {file}: exists already"
    assert "cannot be written" in save(file / "x.yaml")


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


@pytest.mark.parametrize("dry", [True, False])
def test_a_name_in_use_is_refused_before_anything_is_written_unless_it_is_replaced(compare, store, tmp_path, dry):
    store.create("compare", "older", name="mine")
    line = f"{SWEEP} --name mine --save-recipe {tmp_path}/r.yaml" + " --dry-run" * dry
    assert "in use" in compare(line, code=2)["error"]["message"]
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1, False)
    compare(f"{line} --replace", code=0 if dry else 130)
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1 if dry else 6, True)
    assert (store.resolve("mine") == store.list()[0]) == dry


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--arm a:polcy=lpt --arm b:train.steps=x --over seed", 2, ["polcy", "train.steps", "seed"]),
        ("--arm a --arm b:global_batch=32", 5, ["train.global_batch (64 and 32)"]),
        ("--arm a --arm b:window=2 --window 4", 2, ["--window sets schedule.window"]),
        ("--arm a --arm b:capacity=[3,3]", 4, ["64 samples do not fit into the ranks' capacities"]),
        ("quickstart -c other.yaml", 2, ["two recipes given"]),
        ("--resume nothing", 2, ["takes no others"]),
    ],
)
def test_mistakes_are_reported_before_anything_is_made(compare, store, words, code, said):
    for dry in ("", "--dry-run"):
        error = compare(f"{words} {TWO} {dry}", code=code)["error"]
        assert [word for word in said if word not in error["message"]] == []
        assert not store.root.exists()


def test_what_no_arm_reads_is_said_once(compare):
    for_some = "--dry-run --set schedule.solver=greedy --set schedule.cost_type=attention"
    for_none = "--set schedule.replan_steps=16 --set compress.ratio=0.5 --set analysis.confidence=0.9"
    assert compare(for_some)["warnings"] == []
    warnings = compare(f"{for_some} {for_none}")["warnings"]
    assert [line.partition(":")[0] for line in warnings] == ["compress.ratio", "schedule.replan_steps"]


@pytest.mark.parametrize(
    ("arms", "alike"),
    [
        ("a:mode=static b:policy=static c:policy=partition d:mode=dynamic", [["a", "b"], ["c", "d"]]),
        ("a:capacity=32 b:probe=off", []),
        ("a b:threads=1", [["a", "b"]]),
    ],
)
def test_arms_that_are_configured_alike_are_named(compare, cli, arms, alike):
    line = " ".join(f"--arm {arm}" for arm in arms.split()) + f" {TWO} --set launch.launcher=torchrun --dry-run"
    line += "" if "threads" in arms else " --threads 1"
    assert compare(line)["alike"] == alike
    said = cli(f"compare {line}").err
    assert said.count("A/A") == len(alike) and all(" and ".join(names) in said for names in alike)


@pytest.mark.parametrize("line", [f"{ARMS} {SMALL}", SWEEP], ids=["one", "cells"])
def test_of_several_nodes_the_first_has_the_name_and_writes_the_file(compare, started, tmp_path, line):
    nodes = "--launcher torchrun --nnodes 2 --rdzv-endpoint h:1 --rdzv-id i --name both"
    for rank in (0, 1):
        compare(f"{line} {nodes} --node-rank {rank} --save-recipe {tmp_path}/{rank}.yaml", code=130)
    assert [run.name for run, _ in started] == ["both", None]
    assert [(tmp_path / f"{rank}.yaml").exists() for rank in (0, 1)] == [True, False]


def test_time_is_that_of_earlier_runs_of_the_same_settings(compare, store):
    def ran(minutes: int, **flags: object) -> None:
        shared = {"launch.device": "cpu", "launch.nproc": 2, "train.warmup_steps": 0}
        run = store.create("train", "x")
        config = resolve(load_config(flags={**shared, **flags}), this_machine(), store).config
        write_text(run.config_file, dump_config(config))
        run.update(status="running")
        times = {"started": "2026-01-01T00:00:00+00:00", "ended": f"2026-01-01T00:{minutes:02}:00+00:00"}
        run.update(status="completed", exit_code=0, **times)

    def estimated(over: str = "") -> object:
        return compare(f"{ARMS} {SMALL} --launches 2 --dry-run {over}")["estimated_s"]

    ran(50, **{"train.steps": 4, "train.global_batch": 8})
    assert estimated() is None
    ran(2, **{"train.steps": 8, "train.seed": 5})
    assert estimated() == pytest.approx(4 * 60)
    ran(10, **{"train.steps": 4, "schedule.policy": "partition"})
    assert estimated() == pytest.approx(2 * 60 + 2 * 600)
    assert estimated("--over global_batch=64,8") == pytest.approx(2 * 660 + 4 * 3000)
    assert estimated("--over global_batch=64,10") is None


def test_without_a_terminal_every_launch_stage_and_epoch_is_one_line(capsys):
    first = [LaunchState("static", 0, 0)]
    both = [*first, LaunchState("partition", 0, 0)]
    with display(True, "starting", LAUNCHES) as shown:
        for step in (0, 1, 2):
            shown.on_launches(CompareProgress(0, 2, first, step, 2, None if step == 0 else 61.2))
        for step, epochs in enumerate([(("e1",), ()), (("e1", "e2"), ("f1",)), (("e1", "e2"), ("f1",))]):
            shown.on_launches(CompareProgress(1, 2, both, step, 2, 7.0, epochs))
        for text in ("merging a (1 of 2)", "merging b (2 of 2)", "drawing figures"):
            shown.on_stage(text)
    assert capsys.readouterr().err.splitlines() == [
        "launch 1/2  static #1",
        "static #1  e1",
        "launch 2/2  2 arms in turns #1  about 7 s left",
        "static #1  e2",
        "partition #1  f1",
        "merging a (1 of 2)",
        "drawing figures",
    ]


def cells(folder: Path, *facts: dict[str, object], form: common.Form = "table") -> None:
    """Print a comparison on real ranks and one on virtual ones; facts are laid over what each found."""
    store, made = RunStore(folder), []
    found = [[compared(**{"speedup": 1.25, "ci95": None, **given})] for given in facts]
    for batch, launcher in ((8, "torchrun"), (64, "virtual")):
        cell = store.create("compare", "cell")
        runs = [{"id": "a", "summary": {"launcher": launcher}}]
        content = {"runs": runs, "arms": [{"name": "static", "runs": ["a"]}], "comparisons": []}
        write_json(cell.path / "comparison.json", content)
        made.append(Cell({"train.global_batch": batch, "schedule.capacity": [6, 5]}, cell.id))
    outcome = SimpleNamespace(run=store.create("compare", "both"), cells=made, comparisons=found, figures=[])
    with common.stdout_holds(form, tells=True):
        show_cells(outcome)


def test_cells_are_a_table_for_people_and_for_programs(tmp_path, capsys):
    cells(tmp_path, {}, {})
    header, real, virtual, *_, last = capsys.readouterr().out.splitlines()
    *command, _, option, results = shlex.split(last)
    assert (command, option, results) == (["next", "dynbench", "report"], "--results", str(tmp_path))
    assert header.split()[:3] == ["settings", "ranks", "arm"]
    assert [" real " in real, " virtual " in virtual] == [True, True]

    cells(tmp_path / "csv", {"ci95": [1.2, 1.3]}, {"speedup": 1 / 3}, form="csv")
    printed = capsys.readouterr()
    assert "comparison  " in printed.err
    first, second = csv.DictReader(io.StringIO(printed.out))
    assert [row["train.global_batch"] for row in (first, second)] == ["8", "64"]
    assert [second[key] for key in ("speedup", "interval_low", "ranks")] == [repr(1 / 3), "", "virtual"]
    assert (first["schedule.capacity"], first["interval_high"]) == ("[6, 5]", "1.3")


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
def test_only_columns_that_a_comparison_fills_are_shown(tmp_path, capsys, first, second, titles):
    cells(tmp_path, first, second)
    header, *lines = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == f"settings ranks arm verdict {titles}"
    assert ("75.0" in lines[1]) == ("efficiency" in titles)

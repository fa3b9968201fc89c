"""`dynbench compare` with arms and sweeps from the command line, without launching anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recipe_files import load_cells

from dynbench.cli.main import main
from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.config.recipes import RECIPE_FILE
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

ARMS = ("--arm", "static:schedule.mode=static", "--arm", "part:policy=partition,window=1")
SMALL = ("--device", "cpu", "--nproc", "2", "--set", "train.steps=4", "--set", "train.warmup_steps=0")
SWEEP = (*ARMS, *SMALL, "--over", "train.global_batch=8,16", "--over", "seed=1,2")

Compare = Callable[..., dict]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The comparisons that would be run, in place of running them."""
    runs: list[Run] = []

    def stop(run: Run, *_: object) -> None:
        runs.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr("dynbench.cli.compare._run", stop)
    return runs


@pytest.fixture
def compare(store: RunStore, capsys: pytest.CaptureFixture[str], started: list[Run]) -> Compare:
    def run(*words: str, code: int = 0) -> dict:
        capsys.readouterr()
        assert main(["compare", *words, "--json", "--results", str(store.root)]) == code
        return json.loads(capsys.readouterr().out)

    return run


def test_a_dry_run_shows_arms_cells_launches_and_time_and_touches_nothing(
    compare: Compare, store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = compare(*SWEEP, "--dry-run")

    assert [cell["settings"] for cell in shown["cells"]] == [
        {"train.global_batch": batch, "train.seed": seed} for batch in (8, 16) for seed in (1, 2)
    ]
    for cell in shown["cells"]:
        assert list(cell["arms"]) == ["static", "part"]
        assert [launch["arm"] for launch in cell["launches"]] == ["static", "part", "static", "part"]
        assert {arm["train"]["steps"] for arm in cell["arms"].values()} == {4}
    assert (shown["estimated_s"], shown["alike"]) == (None, [])
    assert not store.root.exists()

    assert main(["compare", *SWEEP, "--dry-run", "--results", str(store.root)]) == 0
    text = capsys.readouterr().out
    assert (
        "# 4 comparisons of 2 launches, interleaved (the arms can share their processes): static part; static part\n"
        in text
    )
    assert "# time unknown: no completed run here" in text


@pytest.mark.parametrize("words", [(*ARMS, *SMALL), SWEEP, ("quickstart", *ARMS[2:], *SMALL)], ids=len)
def test_what_a_dry_run_prints_is_the_recipe_that_is_saved_and_that_runs_alike(
    compare: Compare, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "mine.yaml"
    words = tuple(word.replace("part:", "mine:") for word in words)
    shown = compare(*words, "--dry-run", "--save-recipe", str(file))
    assert main(["compare", *words, "--dry-run"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)

    assert load_cells(printed)[0].arms == load_cells(file)[0].arms
    again = compare(str(file), "--dry-run")
    for facts in (shown, again):
        for plan in facts.get("cells", [facts]):
            plan.pop("recipe")
    assert again == shown


def test_the_file_is_never_overwritten_and_not_left_by_what_is_refused(compare: Compare, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    compare(*ARMS, "--arm", "bad:policy=prefix,buffer=3", *SMALL, "--save-recipe", str(file), "--dry-run", code=2)
    assert not file.exists()
    compare(*ARMS, *SMALL, "--save-recipe", str(file), "--dry-run")
    error = compare(*ARMS, *SMALL, "--save-recipe", str(file), "--dry-run", code=2)["error"]
    assert error["message"] == f"--save-recipe {file}: exists already"
    missing = compare(*ARMS, *SMALL, "--save-recipe", str(file / "x.yaml"), "--dry-run", code=2)["error"]
    assert "cannot be written" in missing["message"]


def test_a_started_comparison_is_the_recipe_of_its_arms(compare: Compare, store: RunStore, started: list[Run]) -> None:
    compare(*ARMS, *SMALL, "--name", "mine", code=130)

    (run,) = started
    (recipe,) = load_cells(run.path / RECIPE_FILE)
    assert (store.resolve("mine").id, list(recipe.arms), recipe.baseline) == (run.id, ["static", "part"], "static")
    assert "-static-part-" in run.id
    assert json.loads((run.path / "compare.json").read_text())["recipe"] == "static-part"
    compare("--resume", "mine", code=130)
    assert [each.id for each in started] == [run.id, run.id]


@pytest.mark.parametrize("dry", [True, False])
def test_a_name_in_use_is_refused_before_anything_is_written_unless_it_is_replaced(
    compare: Compare, store: RunStore, tmp_path: Path, dry: bool
) -> None:
    store.create("compare", "older", name="mine")
    words = (*SWEEP, "--name", "mine", "--save-recipe", str(tmp_path / "r.yaml"), *(["--dry-run"] if dry else []))
    assert "in use" in compare(*words, code=2)["error"]["message"]
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1, False)

    compare(*words, "--replace", code=0 if dry else 130)
    assert (len(store.list()), (tmp_path / "r.yaml").exists()) == (1 if dry else 6, True)
    assert (store.resolve("mine") == store.list()[0]) == dry


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--arm", "a:polcy=lpt", "--arm", "b:train.steps=x", "--over", "seed"), 2, ["polcy", "train.steps", "seed"]),
        (("--arm", "a", "--arm", "b:global_batch=32"), 5, ["train.global_batch (64 and 32)"]),
        (("--arm", "a", "--arm", "b:window=2", "--window", "4"), 2, ["--window sets schedule.window"]),
        (("--arm", "a", "--arm", "b:window=2", "--set", "schedule.window=4"), 2, ["--set schedule.window sets"]),
        (("--arm", "a"), 2, ["a single arm"]),
        (("sst2", "--arm", "static"), 2, ["'static' is the name of an earlier arm"]),
        (("--arm", "a", "--arm", "b:capacity=[3,3]"), 4, ["64 samples do not fit into the ranks' capacities"]),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_mistakes_are_told_before_anything_is_made(
    compare: Compare, store: RunStore, words: tuple[str, ...], code: int, said: list[str], dry: bool
) -> None:
    error = compare(*words, "--device", "cpu", "--nproc", "2", *(["--dry-run"] if dry else []), code=code)["error"]

    assert [word for word in said if word not in error["message"]] == []
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("arms", "alike"),
    [
        (("a", "b"), [["a", "b"]]),
        (("a:mode=static", "b:policy=static", "c:policy=partition", "d:mode=dynamic"), [["a", "b"], ["c", "d"]]),
        (("a:capacity=32", "b:probe=off"), []),
        (("a", "b:threads=1"), [["a", "b"]]),
    ],
)
def test_arms_that_are_configured_alike_are_told(
    compare: Compare, capsys: pytest.CaptureFixture[str], arms: tuple[str, ...], alike: list[list[str]]
) -> None:
    words = [word for arm in arms for word in ("--arm", arm)]
    words += ["--device", "cpu", "--nproc", "2", "--set", "launch.launcher=torchrun"]
    words += [] if "b:threads=1" in arms else ["--threads", "1"]
    assert compare(*words, "--dry-run")["alike"] == alike
    assert main(["compare", *words, "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert [f"arms {' and '.join(names)} are configured alike (A/A)" in told for names in alike] == [True] * len(alike)
    assert told.count("A/A") == len(alike)


@pytest.mark.parametrize("words", [(*ARMS, *SMALL), SWEEP], ids=["one", "cells"])
def test_of_several_nodes_the_first_has_the_name_and_writes_the_file(
    compare: Compare, store: RunStore, started: list[Run], tmp_path: Path, words: tuple[str, ...]
) -> None:
    nodes = ("--launcher", "torchrun", "--nnodes", "2", "--rdzv-endpoint", "h:1", "--rdzv-id", "i")
    for rank in ("0", "1"):
        file = tmp_path / f"{rank}.yaml"
        compare(*words, *nodes, "--node-rank", rank, "--name", "both", "--save-recipe", str(file), code=130)
    assert [run.name for run in started] == ["both", None]
    assert [(tmp_path / f"{rank}.yaml").exists() for rank in "01"] == [True, False]


def test_time_is_that_of_earlier_runs_of_the_same_settings(compare: Compare, store: RunStore) -> None:
    def ran(minutes: int, **flags: object) -> Run:
        shared = {"launch.device": "cpu", "launch.nproc": 2, "train.warmup_steps": 0}
        config = load_config(flags={**shared, **flags})
        run = store.create("train", "x")
        write_text(run.config_file, dump_config(resolve(config, this_machine(), store).config))
        run.update(status="running")
        times = {"started": "2026-01-01T00:00:00+00:00", "ended": f"2026-01-01T00:{minutes:02}:00+00:00"}
        run.update(status="completed", exit_code=0, **times)
        return run

    words = (*ARMS, *SMALL, "--launches", "2", "--dry-run")
    ran(50, **{"train.steps": 4, "train.global_batch": 8})
    assert compare(*words)["estimated_s"] is None
    ran(2, **{"train.steps": 8, "train.seed": 5})
    assert compare(*words)["estimated_s"] == pytest.approx(4 * 60)
    ran(10, **{"train.steps": 4, "schedule.policy": "partition"})
    assert compare(*words)["estimated_s"] == pytest.approx(2 * 60 + 2 * 600)
    assert compare(*words, "--over", "global_batch=64,8")["estimated_s"] == pytest.approx(2 * 660 + 4 * 3000)
    assert compare(*words, "--over", "global_batch=64,10")["estimated_s"] is None

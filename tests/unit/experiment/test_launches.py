"""What a comparison tells its launches, and what it has said once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from probes import make_probe
from recipe_files import load_cells

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe
from dynbench.engine.launching.resolve import Machine
from dynbench.engine.launching.run_launch import plan_launch
from dynbench.engine.turn_order import Turns
from dynbench.errors import WorkerFailed
from dynbench.experiment import launches
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.preflight import recipe_warnings
from dynbench.experiment.training import LaunchedArm
from dynbench.runs.store import RunStore

EXPOSED = "train: {exposed: true}, launch: {launcher: torchrun, nproc: 2, device: cpu}"


def test_arms_are_warned_about_together_and_launches_draw_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []

    def training(*_: object, **options: object) -> None:
        told.append(options)
        raise WorkerFailed("enough")

    monkeypatch.setattr(launches, "run_arms", training)
    shown = ["--set", "schedule.replan_steps=16", "--device", "cpu", "--results", str(tmp_path), "--name", "c"]
    assert main(["compare", "quickstart", "--launches", "2", *shown]) == 3
    (options,) = told
    assert options.get("asked") is None
    assert not options.get("figures", False)
    (warning,) = RunStore(tmp_path).resolve("c").record().warnings
    assert warning.startswith("schedule.replan_steps: 16 has no effect: ")


def test_what_all_launches_have_in_common_is_said_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    make_probe(store, speeds=[1.0, 0.5], tables=[[(256, 40)]] * 4)
    settings = ("schedule.policy=prefix", "schedule.buffer=20", "train.global_batch=64", "launch.nproc=4")
    arm = load_config(None, (*settings, "launch.device=cpu", "probe.run=probed"))
    arms = {"a": arm, "b": arm.model_copy(deep=True)}
    (recipe,) = load_cells(find_recipe("quickstart"))
    lines = recipe_warnings([replace(recipe, arms=arms)], store)
    assert [line.partition(":")[0] for line in lines] == ["schedule.buffer", "schedule.speeds"]
    plan = plan_launch(arm, store, machine=Machine(cores=4, gpus=0, bf16=False))
    assert plan.warnings == ()
    plan = plan_launch(arm, store, machine=Machine(cores=4, gpus=0, bf16=False), asked=arm)
    assert [line.partition(":")[0] for line in plan.warnings] == ["schedule.buffer", "schedule.speeds"]


def test_a_failure_of_the_like_without_communication_is_that_of_its_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the last run of a launch fails, the like of its last arm; that arm goes apart."""
    launched: list[tuple[list[str], Turns | None]] = []

    def training(arms: Sequence[LaunchedArm], *_: object, turns: Turns | None, **__: object) -> None:
        launched.append(([str(arm.naming.get("name")) for arm in arms], turns))
        error = WorkerFailed("enough", rank=1)
        error.arm = len(arms) - 1
        raise error

    monkeypatch.setattr(launches, "run_arms", training)
    arms = "[{name: a}, {name: b, set: {sync.name: flat}}]"
    (tmp_path / "r.yaml").write_text(f"description: d\nsettings: {{{EXPOSED}}}\narms: {arms}\nlaunches: 2\n")
    arguments = ["compare", str(tmp_path / "r.yaml"), "--results", str(tmp_path / "results"), "--name", "c"]
    assert main(arguments) == 3
    ((names, turns),) = launched
    assert turns is not None and turns.arms == ("a", "a-null", "b", "b-null")
    assert [name.partition("-")[2].endswith("-null") for name in names] == [False, True, False, True]
    state = read_state(RunStore(tmp_path / "results").resolve("c").path)
    assert state.groups == (("a",), ("b",)) and "arm b ended a launch" in state.reason

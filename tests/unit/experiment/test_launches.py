"""The launches of a comparison: what they are told, how many follow a first stage, and those of several cells."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from compared import ARMS, compared
from fake_training import FakeTraining
from probes import make_probe
from recipe_files import load_cells
from unit.experiment.conftest import Start

from dynbench.analysis.record import Finding, read_cells
from dynbench.analysis.stats import student_t_quantile
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import find_recipe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine
from dynbench.engine.launching.run_launch import plan_launch
from dynbench.errors import UsageError, WorkerFailed
from dynbench.experiment import launches
from dynbench.experiment.cells import holds_cells, run_cells, start_cells
from dynbench.experiment.compare import Outcome, run_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.preflight import recipe_warnings
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

EXPOSED = "train: {exposed: true}, launch: {launcher: torchrun, nproc: 2, device: cpu}"


def test_arms_are_warned_about_together_and_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Mock(side_effect=WorkerFailed("enough"))
    monkeypatch.setattr(launches, "run_arms", training)
    shown = ["--set", "schedule.replan_steps=16", "--device", "cpu", "--results", str(tmp_path), "--name", "c"]
    assert main(["compare", "quickstart", "--launches", "2", *shown]) == 3
    (call,) = training.call_args_list
    assert call.kwargs.get("asked") is None and not call.kwargs.get("figures")
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
    for asked, said in ((None, ()), (arm, tuple(lines))):
        assert plan_launch(arm, store, machine=Machine(cores=4, gpus=0, bf16=False), asked=asked).warnings == said


def test_a_failure_of_an_arm_s_like_is_that_of_the_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the last run of a launch fails, the like of its last arm; that arm goes apart."""
    training = Mock(side_effect=WorkerFailed("enough", rank=1))
    training.side_effect.arm = 3
    monkeypatch.setattr(launches, "run_arms", training)
    arms = "[{name: a}, {name: b, set: {sync.name: flat}}]"
    (tmp_path / "r.yaml").write_text(f"description: d\nsettings: {{{EXPOSED}}}\narms: {arms}\nlaunches: 2\n")
    arguments = ["compare", str(tmp_path / "r.yaml"), "--results", str(tmp_path / "results"), "--name", "c"]
    assert main(arguments) == 3
    (call,) = training.call_args_list
    assert call.kwargs["turns"].arms == ("a", "a-null", "b", "b-null")
    assert [str(arm.naming["name"]).endswith("-null") for arm in call.args[0]] == [False, True, False, True]
    state = read_state(RunStore(tmp_path / "results").resolve("c").path)
    assert state.groups == (("a",), ("b",)) and "arm b ended a launch" in state.reason


LAUNCHES = "launches: {count: 4, mode: apart}"


class Launched(FakeTraining):
    """Launches whose log ratios spread as they are told to.

    Args:
        spread: of the log ratios.
    """

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.logs = (math.log(1.5) + spread * np.random.default_rng(0).standard_normal(200)).tolist()

    @property
    def launches(self) -> int:
        """Blocks begun so far; every run of one has its seed."""
        return len({seed for _, _, seed in self.calls})

    def step_ms(self, config: Config) -> float:
        return 100.0 * (math.exp(self.logs[config.train.seed]) if config.schedule.mode == "static" else 1.0)


Staged = Callable[[float, str], tuple[Outcome, Launched]]


@pytest.fixture
def staged(store: RunStore, start: Start, monkeypatch: pytest.MonkeyPatch, unreported: None) -> Staged:
    def run(spread: float, asked: str) -> tuple[Outcome, Launched]:
        fake = Launched(spread)
        monkeypatch.setattr(launches, "run_arms", fake)
        return run_comparison(start(LAUNCHES, f"launches: {{{asked}}}"), store), fake

    return run


@pytest.mark.slow
def test_the_first_stage_says_how_many_follow_and_the_interval_has_its_spread(store: RunStore, staged: Staged) -> None:
    outcome, fake = staged(0.03, "half_width: 1%, first: 6")
    spread = float(np.std(fake.logs[:6], ddof=1))
    quantile = student_t_quantile(0.975, 5)
    needed = math.ceil((quantile * spread / math.log1p(0.01)) ** 2)
    assert fake.launches == outcome.state.blocks == needed > 6
    (found,) = outcome.analysed.comparisons
    record = found.record()
    assert record.first_stage == 6 and record.launches == needed and record.ci95 is not None
    half = math.log(record.ci95[1] / record.ci95[0]) / 2
    assert half == pytest.approx(quantile * spread / math.sqrt(needed), rel=1e-3) and half <= math.log1p(0.01)
    asked = outcome.as_dict()["launches"]
    assert isinstance(asked, dict) and asked.pop("reason")
    assert asked == {"mode": "interleaved", "count": needed, "block": 1, "half_width": 0.01}
    again = run_comparison(outcome.run, store)
    assert again.state == read_state(outcome.run.path) == outcome.state
    assert fake.launches == outcome.state.blocks, "resumed, it is not asked again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "most", "made"),
    [("half_width: 1%, first: 4, max_launches: 9", 200, 9), ("half_width: 0.001%, first: 4", 10, 10)],
    ids=["asked for", "what can be laid out"],
)
def test_a_limit_is_kept_and_its_price_is_told(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, asked: str, most: int, made: int
) -> None:
    monkeypatch.setattr(launches, "MOST_LAUNCHES", most)
    outcome, fake = staged(0.05, asked)
    assert outcome.state.blocks == fake.launches == made
    (warning,) = outcome.run.record().warnings
    assert warning.startswith("launches.half_width: ") and f"allows {made}, " in warning and f"to {most} " in warning


def test_apart_the_number_stays_even(staged: Staged) -> None:
    outcome, _ = staged(0.05, "half_width: 2%, first: 4, mode: apart, max_launches: 9")
    assert outcome.state.mode == "apart" and outcome.state.blocks == 8


TWO = """\
description: two cells
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic}
cells:
  - {train.global_batch: 8}
  - {train.global_batch: 64}
"""
FOUND = compared(speedup=1.2, ci95=None, overhead_share=0.5).model_dump()
DRIFT = Finding("warn", "a: step time changes by +20 % over the launch", "10 %", "Look.", "drift", {"run": "a"})


def launched(comparison: Run, which: str) -> SimpleNamespace:
    """Stands in for the launches of a cell."""
    runs = [{"id": "a", "summary": {"launcher": "virtual"}}]
    record = {"runs": runs, "arms": ARMS, "comparisons": [FOUND], "checks": [DRIFT.as_dict()]}
    write_json(comparison.path / "comparison.json", record)
    for status in (Status.RUNNING, Status.COMPLETED):
        comparison.update(status=status)
    return SimpleNamespace(findings=[])


@pytest.fixture
def together(store: RunStore, tmp_path: Path) -> Run:
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return start_cells(load_cells(path), store, name="both")


def test_every_comparison_is_registered_before_one_runs(together: Run, store: RunStore) -> None:
    assert holds_cells(together)
    cells = read_cells(together.path).cells
    assert [cell.label for cell in cells] == ["train.global_batch=8", "train.global_batch=64"]
    assert {store.resolve(cell.comparison).record().group for cell in cells} == {together.id}
    assert [store.resolve(cell.comparison).config().train.global_batch for cell in cells] == [8, 64]
    assert store.resolve("both").id == together.id


@pytest.mark.slow
def test_all_run_and_are_drawn_together(together: Run, store: RunStore) -> None:
    """One that was analyzed with another baseline is brought back: all marks of the figure are over one baseline."""
    runner = Mock(side_effect=launched)
    outcome = run_cells(together, store, runner)
    cells = ["1 of 2: train.global_batch=8", "2 of 2: train.global_batch=64"]
    assert [call.args[1] for call in runner.call_args_list] == cells
    assert together.status is Status.COMPLETED
    assert [path.name for path in outcome.figures] == ["regimes.png"]
    printed = outcome.as_dict()
    assert printed["cells"][1]["comparisons"] == [FOUND]
    assert (printed["recipe"], printed["comparisons"], printed["checks"]) == ("two", [FOUND] * 2, [DRIFT.as_dict()] * 2)

    file = store.resolve(read_cells(together.path).cells[0].comparison).path / "comparison.json"
    known = json.loads(file.read_text())
    write_json(file, {**known, "arms": [{"name": "partition", "runs": ["a"]}]})
    assert run_cells(together, store, runner).findings == [DRIFT, DRIFT], "also of the one that ran earlier"
    assert [call.args[1] for call in runner.call_args_list] == [*cells, cells[0]]
    assert json.loads(file.read_text())["arms"] == known["arms"]


def test_cells_that_another_process_runs_are_left_alone(together: Run, store: RunStore) -> None:
    together.update(status=Status.RUNNING)
    with pytest.raises(UsageError, match="is running in process"):
        run_cells(together, store, Mock(side_effect=AssertionError))
    assert together.status is Status.RUNNING

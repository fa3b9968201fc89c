"""A comparison from recipe to report, and several of cells, with training replaced by made-up rows.

What launches are told, how many follow a first stage, what ends a comparison and how it is gone on with.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from compared import ARMS, compared
from fake_training import RECIPE, FakeTraining
from probes import make_probe
from recipe_files import load_cells
from unit.experiment.conftest import Start, command

from dynbench.analysis.record import Finding, read_cells
from dynbench.analysis.stats import student_t_quantile
from dynbench.config.recipes import RECIPE_FILE, load_recipe
from dynbench.config.schema import Config
from dynbench.engine.launching import run_launch
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import DataError, DynbenchError, NotComparable, NothingFits, Terminated, UsageError, WorkerFailed
from dynbench.experiment import launches
from dynbench.experiment.cells import holds_cells, run_cells, start_cells
from dynbench.experiment.compare import Outcome, run_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.launches import Clock, CompareProgress
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_input import find_report_input
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining()
    monkeypatch.setattr(launches, "run_arms", fake)
    return fake


@pytest.fixture
def begun(store: RunStore, training: FakeTraining, start: Start) -> Run:
    """A comparison of which two launches are done and the third has failed."""
    comparison, training.fail_at = start(), 2
    with pytest.raises(WorkerFailed):
        run_comparison(comparison, store)
    training.fail_at = None
    return comparison


@pytest.mark.slow
def test_from_recipe_to_report(store: RunStore, training: FakeTraining, start: Start) -> None:
    training.data = {}
    comparison, seen, stages = start(), list[CompareProgress](), list[str]()

    outcome = run_comparison(comparison, store, seen.append, stages.append)

    launched = [(name.partition("-")[0], seed) for name, _, seed in training.calls]
    assert launched == [(one.arm, one.seed) for one in outcome.state.launches] and outcome.state.blocks == 4
    assert [progress.done for progress in seen] == list(range(8))
    assert [progress.eta_s is None for progress in seen] == [True] + [False] * 7
    assert stages[-2:] == ["solving exact against greedy", "writing the report"]
    assert comparison.status is Status.COMPLETED
    made = [record for run, record in store.entries() if run != comparison]
    assert sorted(record.command for record in made) == ["solve", *["train"] * 8]
    assert {record.group for record in made} == {comparison.id} and comparison.record().group is None
    found = outcome.analysed.comparisons[0]
    assert (found.verdict, found.level, found.speedup.pairs) == ("FASTER", "step", 4)
    assert found.speedup.estimate == pytest.approx(2.0, rel=0.02)
    assert [path.name for path in outcome.reports] == ["report.en.md", "report.en.html"]
    solved = read_solved(comparison.path)
    assert solved is not None
    assert [line["arm"] for line in solved.results] == ["static", "partition", None, None]
    assert {(line["world_size"], line["global_batch"]) for line in solved.results} == {(2, 8)}


def test_a_failed_launch_is_repeated_as_is_one_that_was_removed_and_finished_ones_are_not(
    store: RunStore, training: FakeTraining, begun: Run, unreported: None
) -> None:
    assert begun.status is Status.FAILED
    failed = read_state(begun.path).launches[2]
    assert (failed.done, failed.run is not None) == (False, True)
    with pytest.raises(UsageError, match="failed and was not analyzed"):
        find_report_input(store, "demo")
    store.remove(store.resolve(read_state(begun.path).arms["static"][0]))

    outcome = run_comparison(begun, store)

    assert len(training.calls) == 3 + 7
    assert training.calls[3:5] == [training.calls[0], training.calls[2]]
    assert begun.status is Status.COMPLETED and begun.record().failure is None
    assert [len(runs) for runs in outcome.state.arms.values()] == [4, 4]
    assert failed.run not in outcome.state.arms["partition"]
    assert [record.command for _, record in store.entries()].count("train") == 9


ANEW = "start anew (--replace takes the name over)."
OTHER_SETTINGS = f"; with other settings, {ANEW}"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (DataError("gone", "Bring it back."), f"Bring it back. GO ON{OTHER_SETTINGS}"),
        (Terminated(signal.SIGTERM), "GO ON"),
        (NotComparable("unlike", "Train both."), f"Train both. Going on repeats no launch that is done: {ANEW}"),
    ],
)
def test_whatever_ends_a_comparison_says_how_to_go_on(
    store: RunStore, start: Start, monkeypatch: pytest.MonkeyPatch, error: BaseException, hint: str
) -> None:
    """Its record and exit code are those of every command, see unit/runs/test_recorder.py."""
    monkeypatch.setattr(launches, "run_arms", Mock(side_effect=error))
    with pytest.raises(DynbenchError) as caught:
        run_comparison(start(), store)
    going_on = f"Go on with: dynbench compare --resume demo --results {store.root}"
    assert caught.value.hint.endswith(hint.replace("GO ON", going_on))


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ("recipe", UsageError, "was changed since the comparison was started"),
        ("recipe of an earlier version", NotComparable, r"train\.steps \((4 and 6|6 and 4)\)"),
        ("launch", NotComparable, r"train\.steps \(4 and 6\)"),
    ],
)
def test_launches_of_one_arm_have_one_configuration(
    store: RunStore, training: FakeTraining, begun: Run, changed: str, error: type[DynbenchError], said: str
) -> None:
    """That of the recipe that it was started with, of which earlier versions kept no digest."""
    state = read_state(begun.path)
    file = store.resolve(state.arms["partition"][0]).config_file if changed == "launch" else begun.path / RECIPE_FILE
    file.write_text(file.read_text().replace("steps: 6", "steps: 4"))
    if changed.endswith("version"):
        replace(state, recipe_digest=None).write(begun.path)

    with pytest.raises(error, match=said) as caught:
        run_comparison(begun, store)
    assert len(training.calls) == 3 and "start" in caught.value.hint


def test_what_every_launch_warns_of_is_said_once(
    store: RunStore,
    training: FakeTraining,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warning(*given: Any, **named: Any) -> object:
        logging.getLogger(run_launch.__name__).warning("lengths are cut")
        return training(*given, **named)

    monkeypatch.setattr(launches, "run_arms", warning)
    training.fail_at = 2
    with pytest.raises(WorkerFailed):
        run_comparison(start(), store)
    logging.getLogger(run_launch.__name__).warning("afterwards")
    assert len(training.calls) == 3
    assert [caplog.messages.count(said) for said in ("lengths are cut", "afterwards")] == [1, 1]


def test_what_cannot_be_compared_is_refused_first(store: RunStore, start: Start) -> None:
    probe = make_probe(store, "workload.dropout=0.0", tables=[[(12, 8), (256, 1)]] * 2)
    for setting, error, said in (
        ("train.global_batch: 16", NotComparable, r"train\.global_batch \(8 and 16\)"),
        ("train.learning_rate: 1.0e-3", NotComparable, r"train\.learning_rate \(0\.0005 and 0\.001\)"),
        ("schedule.capacity: probed", NothingFits, r"^arm partition: launch with train\.seed \d: step \d+: 8 samples"),
    ):
        with pytest.raises(error, match=said):
            start({"schedule.policy: partition": f"schedule.policy: partition, {setting}"})
        assert store.list() == [probe]


def test_auto_and_the_value_that_it_means_can_be_compared(start: Start) -> None:
    assert start({"schedule.policy: partition": "train.learning_rate: 5.0e-4"}).status is Status.CREATED


def test_equal_arms_stay_two_arms(store: RunStore, training: FakeTraining, start: Start, unreported: None) -> None:
    own = "partition\n    set: {schedule.mode: dynamic, schedule.policy: partition}"
    outcome = run_comparison(start({own: "again"}), store)
    assert [arm.label for arm in outcome.analysed.arms] == ["static", "again"]
    assert outcome.analysed.comparisons[0].verdict == "SAME"


def test_the_estimate_counts_the_part_of_the_current_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches.time, "monotonic", lambda: 60.0)
    assert Clock(started_s=0.0, finished=1).eta_s(3, 0.5) == pytest.approx(60.0 * 2.5 / 1.5)


@pytest.mark.slow
def test_a_condition_that_is_met_ends_compare_with_6_also_where_it_is_gone_on_with(
    store: RunStore, training: FakeTraining, unreported: None, tmp_path: Path, capsys: Output
) -> None:
    recipe = tmp_path / "demo.yaml"
    recipe.write_text(RECIPE.replace("count: 4", "count: 2"))
    results = f"--results {store.root}"
    assert command(f"compare {recipe} --name demo --fail-on faster --json {results}") == 6
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["command"], found["recipe"], found["comparison"]["verdict"]) == ("compare", "demo", "FASTER")
    assert "error" in found and "--fail-on faster: partition is FASTER: " in err
    assert store.resolve("demo").status is Status.COMPLETED
    for condition, code in (("faster", 6), ("slower,different-loss", 0)):
        assert command(f"compare --resume demo --fail-on {condition} {results}") == code
        said = capsys.readouterr()
        assert "\nFASTER  partition " in said.out and ("is FASTER: " in said.err) == (code == 6)
    assert said.out.split()[-6:] == f"next dynbench report demo {results}".split()


SWEEP = (
    "compare --arm static:mode=static --arm part:policy=partition,window=1 --over global_batch=8,16 --name sweep "
    "--device cpu --nproc 2 --threads 1 --launcher torchrun --steps 6 --warmup-steps 1 --launches 2"
)


@pytest.mark.slow
def test_a_sweep_from_the_command_line_is_gone_on_with_and_ends_in_its_table(
    store: RunStore, training: FakeTraining, unreported: None, capsys: Output
) -> None:
    shown = f"--format csv --results {store.root}"
    training.fail_at = 5

    assert command(f"{SWEEP} {shown}") == 3
    said = capsys.readouterr()
    assert (said.out, len(training.calls)) == ("", 6)
    assert said.err.count("Go on with: ") == 1
    assert f"Go on with: dynbench compare --resume sweep --results {store.root}" in said.err
    assert store.resolve("sweep").status is Status.FAILED

    assert command(f"compare --resume sweep {shown}") == 0
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    cells = [(row["train.global_batch"], row["arm"], row["verdict"]) for row in found]
    assert cells == [("8", "part", "FASTER"), ("16", "part", "FASTER")]
    assert len(training.calls) == 10  # both arms of the launch that one ended
    assert {name.partition("-")[0] for name, _, _ in training.calls} == {"static", "part"}


def test_arms_are_warned_about_together_and_launches_say_nothing_of_it(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of settings that no arm reads, and of what each of the two launches would say by itself; nothing is drawn."""
    make_probe(store, speeds=[1.0, 0.5], tables=[[(256, 40)]] * 4)
    own = "schedule: {policy: prefix, buffer: 20, replan_steps: 16}, probe: {run: probed}"
    others = "train: {global_batch: 64}, launch: {nproc: 4, device: cpu}"
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"description: d\nsettings: {{{own}, {others}}}\narms: [{{name: a}}, {{name: b}}]\n")
    monkeypatch.setattr(launches, "run_arms", training := Mock(side_effect=WorkerFailed("enough")))
    assert command(f"compare {recipe} --launches 2 --results {store.root} --name c") == 3
    (call,) = training.call_args_list
    assert call.kwargs.get("asked") is None and not call.kwargs.get("figures")
    lines = store.resolve("c").record().warnings
    names = ["schedule.buffer", "schedule.replan_steps", "schedule.speeds"]
    arm, machine = load_recipe(recipe).arms["a"], Machine(cores=4, gpus=0, bf16=False)
    by_itself, asked = (run_launch.plan_launch(arm, store, machine=machine, asked=given) for given in (None, arm))
    told = [sorted(line.partition(":")[0] for line in each) for each in (lines, asked.warnings, by_itself.warnings)]
    assert told == [names, names, []]


def test_a_failure_of_an_arm_s_like_is_that_of_the_arm(
    store: RunStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the last run of a launch fails, the like of its last arm; that arm goes apart."""
    training = Mock(side_effect=WorkerFailed("enough", rank=1))
    training.side_effect.arm = 3
    monkeypatch.setattr(launches, "run_arms", training)
    comparison = start({LAUNCHES: "launches: 2", "steps: 6,": "steps: 6, exposed: true,"})
    with pytest.raises(WorkerFailed):
        run_comparison(comparison, store)
    (call,) = training.call_args_list
    assert call.kwargs["turns"].arms == ("static", "static-null", "partition", "partition-null")
    assert [str(arm.naming["name"]).endswith("-null") for arm in call.args[0]] == [False, True] * 2
    state = read_state(comparison.path)
    assert state.groups == (("static",), ("partition",)) and "arm partition ended a launch" in state.reason


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
        return run_comparison(start({LAUNCHES: f"launches: {{{asked}}}"}), store), fake

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
    ("asked", "most", "mode", "made"),
    [
        ("half_width: 1%, first: 4, max_launches: 9", 200, "interleaved", 9),
        ("half_width: 0.001%, first: 4", 10, "interleaved", 10),
        ("half_width: 1%, first: 4, mode: apart, max_launches: 9", 200, "apart", 8),
    ],
)
def test_a_limit_is_kept_and_its_price_is_told(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, asked: str, most: int, mode: str, made: int
) -> None:
    """Apart, the number stays even."""
    monkeypatch.setattr(launches, "MOST_LAUNCHES", most)
    outcome, fake = staged(0.05, asked)
    assert outcome.state.blocks == fake.launches == made and outcome.state.mode == mode
    (warning,) = outcome.run.record().warnings
    assert warning.startswith("launches.half_width: ") and f"allows {made}, " in warning and f"to {most} " in warning


CELLS = "cells:\n  - {train.global_batch: 8}\n  - {train.global_batch: 64}\n"
FOUND = compared(speedup=1.2, ci95=None, overhead_share=0.5).model_dump()
DRIFT = Finding("warn", "a: step time changes by +20 % over the launch", "10 %", "Look.", "drift", {"run": "a"})


def launched(comparison: Run, which: str) -> Mock:
    """Stands in for the launches of a cell."""
    runs = [{"id": "a", "summary": {"launcher": "virtual"}}]
    record = {"runs": runs, "arms": ARMS, "comparisons": [FOUND], "checks": [DRIFT.as_dict()]}
    write_json(comparison.path / "comparison.json", record)
    for status in (Status.RUNNING, Status.COMPLETED):
        comparison.update(status=status)
    return Mock(findings=[])


@pytest.fixture
def together(store: RunStore, tmp_path: Path) -> Run:
    path = tmp_path / "two.yaml"
    path.write_text(RECIPE + CELLS)
    return start_cells(load_cells(path), store, name="both")


def test_every_comparison_is_registered_before_one_runs(together: Run, store: RunStore) -> None:
    assert holds_cells(together)
    cells = read_cells(together.path).cells
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


def test_what_another_process_runs_is_left_alone(store: RunStore, start: Start, together: Run) -> None:
    comparison = start()
    for run in (comparison, together):
        run.update(status=Status.RUNNING)
    with pytest.raises(UsageError, match="is running in process"):
        run_comparison(comparison, store)
    with pytest.raises(UsageError, match="is running in process"):
        run_cells(together, store, Mock(side_effect=AssertionError))
    assert together.status is Status.RUNNING

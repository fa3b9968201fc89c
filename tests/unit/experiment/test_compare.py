"""A comparison from recipe to report, with training replaced by made-up rows."""

from __future__ import annotations

import csv
import io
import json
import logging
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_training import RECIPE, FakeTraining
from probes import make_probe
from unit.experiment.conftest import Start

from dynbench.cli.main import main
from dynbench.config.recipes import RECIPE_FILE
from dynbench.engine.launching import run_launch
from dynbench.errors import DataError, DynbenchError, NotComparable, NothingFits, Terminated, UsageError, WorkerFailed
from dynbench.experiment import launches
from dynbench.experiment.compare import run_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.launches import Clock, CompareProgress
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_input import find_report_input
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

    arms = [name.partition("-")[0] for name, _, _ in training.calls]
    assert arms == ["static", "partition", "partition", "static"] * 2
    assert [seed for _, _, seed in training.calls] == [0, 0, 1, 1, 2, 2, 3, 3]
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
    assert "**Use `partition`.**" in outcome.reports[0].read_text(encoding="utf-8")
    solved = read_solved(comparison.path)
    assert solved is not None
    assert [line["arm"] for line in solved.results] == ["static", "partition", None, None]
    sizes = {(line["world_size"], line["global_batch"], line["trace"]) for line in solved.results}
    assert sizes == {(2, 8, "embedded")}
    assert find_report_input(store, None).run == comparison


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
        (WorkerFailed("rank 1 died"), "GO ON"),
        (NotComparable("unlike", "Train both."), f"Train both. Going on repeats no launch that is done: {ANEW}"),
    ],
    ids=["data", "terminated", "worker", "not comparable"],
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
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace("steps: 6", "steps: 4"), encoding="utf-8")
    if changed.endswith("version"):
        replace(state, recipe_digest=None).write(begun.path)

    with pytest.raises(error, match=said) as caught:
        run_comparison(begun, store)
    assert len(training.calls) == 3 and "start" in caught.value.hint

    file.write_text(whole, encoding="utf-8")
    training.fail_at = 3
    with pytest.raises(WorkerFailed):
        run_comparison(begun, store)


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


def test_a_running_comparison_is_left_alone(store: RunStore, start: Start) -> None:
    comparison = start()
    comparison.update(status=Status.RUNNING)

    with pytest.raises(UsageError, match="is running in process"):
        run_comparison(comparison, store)


@pytest.mark.parametrize(
    ("setting", "error", "said"),
    [
        ("train.global_batch: 16", NotComparable, r"train\.global_batch \(8 and 16\)"),
        ("train.learning_rate: 1.0e-3", NotComparable, r"train\.learning_rate \(0\.0005 and 0\.001\)"),
        ("schedule.capacity: probed", NothingFits, r"^arm partition: launch with train\.seed \d: step \d+: 8 samples"),
    ],
    ids=["other work", "other rate than auto", "too large"],
)
def test_what_cannot_be_compared_is_refused_first(
    store: RunStore, start: Start, setting: str, error: type[DynbenchError], said: str
) -> None:
    probe = make_probe(store, "workload.dropout=0.0", tables=[[(12, 8), (256, 1)]] * 2)
    with pytest.raises(error, match=said):
        start("schedule.policy: partition", f"schedule.policy: partition, {setting}")
    assert store.list() == [probe]


def test_auto_and_the_value_that_it_means_can_be_compared(start: Start) -> None:
    assert start("schedule.policy: partition", "train.learning_rate: 5.0e-4").status is Status.CREATED


def test_equal_arms_stay_two_arms(store: RunStore, training: FakeTraining, start: Start, unreported: None) -> None:
    outcome = run_comparison(
        start("partition\n    set: {schedule.mode: dynamic, schedule.policy: partition}", "again"), store
    )

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
    recipe.write_text(RECIPE.replace("count: 4", "count: 2"), encoding="utf-8")
    results = ["--results", str(store.root)]
    assert main(["compare", str(recipe), "--name", "demo", "--fail-on", "faster", "--json", *results]) == 6
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["command"], found["recipe"], found["comparison"]["verdict"]) == ("compare", "demo", "FASTER")
    assert "error" in found and "--fail-on faster: partition is FASTER: " in err
    assert store.resolve(found["run"]["id"]).status is Status.COMPLETED
    for condition, code in (("faster", 6), ("slower,different-loss", 0)):
        assert main(["compare", "--resume", "demo", "--fail-on", condition, *results]) == code
        said = capsys.readouterr()
        assert "\nFASTER  partition " in said.out and ("is FASTER: " in said.err) == (code == 6)
    assert shlex.split(said.out.splitlines()[-1]) == ["next", "dynbench", "report", "demo", *results]


SWEEP = [
    *("compare", "--arm", "static:mode=static", "--arm", "part:policy=partition,window=1"),
    *("--device", "cpu", "--nproc", "2", "--threads", "1", "--launcher", "torchrun"),
    *("--steps", "6", "--warmup-steps", "1", "--launches", "2", "--over", "global_batch=8,16", "--name", "sweep"),
]


@pytest.mark.slow
def test_a_sweep_from_the_command_line_is_gone_on_with_and_ends_in_its_table(
    store: RunStore, training: FakeTraining, unreported: None, capsys: Output
) -> None:
    shown = ["--format", "csv", "--results", str(store.root)]
    training.fail_at = 5

    assert main([*SWEEP, *shown]) == 3
    said = capsys.readouterr()
    assert (said.out, len(training.calls)) == ("", 6)
    assert said.err.count("Go on with: ") == 1
    assert f"Go on with: dynbench compare --resume sweep --results {store.root}" in said.err
    assert store.resolve("sweep").status is Status.FAILED

    assert main(["compare", "--resume", "sweep", *shown]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    cells = [(row["train.global_batch"], row["arm"], row["verdict"]) for row in found]
    assert cells == [("8", "part", "FASTER"), ("16", "part", "FASTER")]
    assert all(len(row["speedup"]) > 6 and row["interval_low"] < row["speedup"] for row in found)
    assert len(training.calls) == 10  # both arms of the launch that one ended
    assert {name.partition("-")[0] for name, _, _ in training.calls} == {"static", "part"}

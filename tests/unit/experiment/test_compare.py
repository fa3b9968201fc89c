"""A comparison from recipe to report, with training replaced by made-up rows."""

from __future__ import annotations

import csv
import io
import json
import shlex
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_training import RECIPE, FakeTraining
from probes import make_probe

from dynbench.cli.main import main
from dynbench.config.recipes import RECIPE_FILE, load_recipe
from dynbench.engine.launching import run_launch
from dynbench.errors import (
    DataError,
    DynbenchError,
    Interrupted,
    NotComparable,
    NothingFits,
    RecordError,
    Terminated,
    UsageError,
    WorkerFailed,
)
from dynbench.experiment import launches
from dynbench.experiment.compare import run_comparison, start_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.launches import Clock, CompareProgress
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_input import find_report_input
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

Start = Callable[..., Run]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining()
    monkeypatch.setattr(launches, "run_arms", fake)
    return fake


@pytest.fixture
def start(store: RunStore, tmp_path: Path) -> Start:
    """Registers a comparison of the recipe, in which one text may stand for another."""

    def started(old: str = "", new: str = "") -> Run:
        path = tmp_path / "demo.yaml"
        path.write_text(RECIPE.replace(old, new), encoding="utf-8")
        return start_comparison(load_recipe(path), store, name="demo")

    return started


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
    assert seen[0].eta_s is None
    assert all(progress.eta_s is not None and progress.eta_s >= 0 for progress in seen[1:])
    assert stages[-2:] == ["solving exact against greedy", "writing the report"]
    assert comparison.status is Status.COMPLETED
    made = [record for run, record in store.entries() if run != comparison]
    assert sorted(record.command for record in made) == ["solve", *["train"] * 8]
    assert {record.group for record in made} == {comparison.id} and comparison.record().group is None
    result = outcome.as_dict()
    assert (result["command"], result["recipe"]) == ("compare", "demo")
    found = outcome.analysed.comparisons[0]
    assert (found.verdict, found.level, found.speedup.pairs) == ("FASTER", "step", 4)
    assert found.speedup.estimate == pytest.approx(2.0, rel=0.02)
    assert [path.name for path in outcome.reports] == ["report.en.md", "report.en.html"]
    assert "**Use `partition`.**" in outcome.reports[0].read_text(encoding="utf-8")
    solved = read_solved(comparison.path)
    assert solved is not None
    assert [(line["arm"], line["policy"]) for line in solved.results] == [
        ("static", "static"), ("partition", "partition"), (None, "prefix"), (None, "packed"),
    ]  # fmt: skip
    sizes = {(line["world_size"], line["global_batch"], line["trace"]) for line in solved.results}
    assert sizes == {(2, 8, "embedded")}
    assert find_report_input(store, None).run == comparison


def test_a_failed_launch_is_repeated_and_finished_ones_are_not(
    store: RunStore, training: FakeTraining, begun: Run, unreported: None
) -> None:
    assert begun.status is Status.FAILED
    failed = read_state(begun.path).launches[2]
    assert (failed.done, failed.run is not None) == (False, True)
    with pytest.raises(RecordError, match="failed and was not analyzed"):
        find_report_input(store, "demo")

    outcome = run_comparison(begun, store)

    assert len(training.calls) == 3 + 6
    assert training.calls[3] == training.calls[2]
    assert begun.status is Status.COMPLETED
    assert begun.record().failure is None
    assert [len(runs) for runs in outcome.state.arms.values()] == [4, 4]
    assert failed.run not in outcome.state.arms["partition"]
    assert [record.command for _, record in store.entries()].count("train") == 9


OTHER_SETTINGS = "; with other settings, start anew (--replace takes the name over)."


@pytest.mark.parametrize(
    ("error", "raised", "hint"),
    [
        (DataError("gone", "Bring it back."), DataError, f"Bring it back. GO ON{OTHER_SETTINGS}"),
        (Terminated(signal.SIGTERM), Interrupted, "GO ON"),
        (WorkerFailed("rank 1 died"), WorkerFailed, "GO ON"),
        (
            NotComparable("unlike", "Train both."),
            NotComparable,
            "Train both. Going on repeats no launch that is done: start anew (--replace takes the name over).",
        ),
    ],
    ids=["data", "terminated", "worker", "not comparable"],
)
def test_whatever_ends_a_comparison_says_how_to_go_on(
    store: RunStore,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[DynbenchError],
    hint: str,
) -> None:
    """Its record and exit code are those of every command, see test_endings.py."""

    def ends(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(launches, "run_arms", ends)
    with pytest.raises(raised) as caught:
        run_comparison(start(), store)
    going_on = f"Go on with: dynbench compare --resume demo --results {store.root}"
    assert caught.value.hint.endswith(hint.replace("GO ON", going_on))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_comparison_goes_on_with_the_recipe_that_it_was_started_with_and_no_other(
    store: RunStore, training: FakeTraining, begun: Run
) -> None:
    edit(begun.path / RECIPE_FILE, "steps: 6", "steps: 4")
    with pytest.raises(UsageError, match="was changed since the comparison was started"):
        run_comparison(begun, store)
    assert len(training.calls) == 3

    edit(begun.path / RECIPE_FILE, "steps: 4", "steps: 6")
    training.fail_at = 3
    with pytest.raises(WorkerFailed):
        run_comparison(begun, store)


@pytest.mark.parametrize("changed", ["launch", "recipe"])
def test_launches_of_one_arm_have_one_configuration(
    store: RunStore, training: FakeTraining, begun: Run, changed: str
) -> None:
    """Planted: a launch that was trained with other steps, and a recipe of a version that kept no digest."""
    state = read_state(begun.path)
    if changed == "launch":
        edit(store.resolve(state.arms["partition"][0]).config_file, "steps: 6", "steps: 4")
    else:
        replace(state, recipe_digest=None).write(begun.path)
        edit(begun.path / RECIPE_FILE, "steps: 6", "steps: 8")

    with pytest.raises(NotComparable, match=r"train\.steps \((4 and 6|6 and 8)\)") as caught:
        run_comparison(begun, store)
    assert len(training.calls) == 3
    assert "start anew" in caught.value.hint


def test_what_every_launch_warns_of_is_said_once(
    store: RunStore,
    training: FakeTraining,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warning(*given: Any, **named: Any) -> object:
        run_launch._log.warning("%s", "lengths are cut")
        return training(*given, **named)

    monkeypatch.setattr(launches, "run_arms", warning)
    training.fail_at = 2
    with pytest.raises(WorkerFailed):
        run_comparison(start(), store)
    assert len(training.calls) == 3 and not run_launch._log.filters
    assert [record.getMessage() for record in caplog.records].count("lengths are cut") == 1


def test_a_removed_run_is_launched_again(store: RunStore, training: FakeTraining, begun: Run) -> None:
    store.remove(store.resolve(read_state(begun.path).arms["static"][0]))
    training.fail_at = 4

    with pytest.raises(WorkerFailed):
        run_comparison(begun, store)

    assert training.calls[3:] == [training.calls[0], training.calls[2]]


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
        (
            "schedule.policy: partition, schedule.capacity: probed",
            NothingFits,
            r"^arm partition: launch with train\.seed \d: step \d+: 8 samples",
        ),
    ],
    ids=["other work", "other rate than auto", "too large"],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    store: RunStore, start: Start, setting: str, error: type[DynbenchError], said: str
) -> None:
    probe = make_probe(store, "workload.dropout=0.0", tables=[[(12, 8), (256, 1)]] * 2)
    with pytest.raises(error, match=said):
        start("schedule.policy: partition", setting)
    assert store.list() == [probe]


def test_auto_and_the_value_that_it_means_can_be_compared(start: Start) -> None:
    assert start("schedule.policy: partition", "train.learning_rate: 5.0e-4").status is Status.CREATED


def test_arms_of_equal_configuration_stay_two_arms(
    store: RunStore, training: FakeTraining, start: Start, unreported: None
) -> None:
    outcome = run_comparison(
        start("partition\n    set: {schedule.mode: dynamic, schedule.policy: partition}", "again"), store
    )

    assert [arm.label for arm in outcome.analysed.arms] == ["static", "again"]
    assert outcome.analysed.comparisons[0].verdict == "SAME"


def test_the_estimate_counts_the_part_of_the_current_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches.time, "monotonic", lambda: 60.0)
    assert Clock(started_s=0.0, finished=1).eta_s(3, 0.5) == pytest.approx(60.0 * 2.5 / 1.5)


@pytest.mark.slow
def test_a_condition_that_is_met_ends_compare_with_6_and_every_next_step_can_be_pasted(
    training: FakeTraining, unreported: None, tmp_path: Path, capsys: Output
) -> None:
    """A registry whose name has a space; every command is the one that its predecessor suggests."""
    results, recipe = tmp_path / "its results", tmp_path / "demo.yaml"
    recipe.write_text(RECIPE.replace("count: 4", "count: 2"), encoding="utf-8")
    store = RunStore(results)

    def compared(*words: str) -> int:
        return main(["compare", *words, "--results", str(results)])

    def pasted() -> list[str]:
        label, program, *words = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert (label, program, words[-2:]) == ("next", "dynbench", ["--results", str(results)])
        assert main(words) == 0
        return words

    assert compared(str(recipe), "--name", "demo", "--fail-on", "faster", "--json") == 6
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["command"], found["recipe"], found["comparison"]["verdict"]) == ("compare", "demo", "FASTER")
    assert "error" in found and "--fail-on faster: partition is FASTER: " in err
    assert store.resolve(found["run"]["id"]).status is Status.COMPLETED

    for condition, code in (("faster", 6), ("slower,different-loss", 0)):
        assert compared("--resume", found["run"]["id"], "--fail-on", condition) == code
        said = capsys.readouterr()
        assert "\nFASTER  partition " in said.out and ("is FASTER: " in said.err) == (code == 6)
    assert shlex.split(said.out.splitlines()[-1])[:4] == ["next", "dynbench", "report", "demo"]

    runs = [run.id for run, record in store.entries() if record.command == "train"]
    assert main(["analyze", *runs, "--results", str(results)]) == 0
    comparison = store.resolve("@latest:analyze")
    assert pasted()[:2] == ["report", comparison.id]
    assert pasted()[:2] == ["report", comparison.id]
    assert {path.name for path in comparison.path.glob("report.*")} == {"report.en.md", "report.en.html"}


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
    assert f"Go on with: dynbench compare --resume sweep --results {store.root}" in said.err

    assert main(["compare", "--resume", "sweep", *shown]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    cells = [(row["train.global_batch"], row["arm"], row["verdict"]) for row in found]
    assert cells == [("8", "part", "FASTER"), ("16", "part", "FASTER")]
    assert all(len(row["speedup"]) > 6 and row["interval_low"] < row["speedup"] for row in found)
    assert len(training.calls) == 10  # both arms of the launch that one ended
    assert {name.partition("-")[0] for name, _, _ in training.calls} == {"static", "part"}

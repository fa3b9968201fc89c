"""The whole list, stage by stage: what is done is kept and not done again, and reports are written at every end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from unit.bench import test_bench_run
from unit.bench.test_bench_run import launched_at_once

from dynbench.bench import bench_run
from dynbench.bench.base import Benchmark, Case, Row
from dynbench.bench.rank import rows_of
from dynbench.cli.main import main
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.toy_check import Checked
from dynbench.errors import Terminated, WorkerFailed
from dynbench.experiment.assignment import suite
from dynbench.experiment.assignment.questions import QUESTIONS
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]
Planted = dict[int, BaseException]
FEW = {"precision": ("features=16", "samples=4", "iterations=2", "warmup=0"), "accounting": ()}


@pytest.fixture
def planted(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Two benchmarks and the check, measured in this process; the comparisons fail. Before a row, what is planted."""

    def check(names: Sequence[str], ranks: int) -> Iterator[Checked]:
        for name in names:
            yield Checked(name, "sgd", ranks, 1e-17, "weight", True, True)

    def fails(run: Run, *_: object, **__: object) -> None:
        raise WorkerFailed("planted: no ranks", rank=0)

    found: Planted = {}
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once(found))
    monkeypatch.setattr(toy_ranks, "check_strategies", check)
    monkeypatch.setattr(suite, "run_comparison", fails)
    monkeypatch.setattr(suite, "ORDER", tuple(FEW))
    monkeypatch.setattr(suite, "SMALL", FEW)
    return found


def states(shown: str) -> dict[str, str]:
    return {each["number"]: each["state"] for each in json.loads(shown)["questions"]}


def test_the_list_goes_on_where_it_was_interrupted(
    store: RunStore, planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    planted[30] = Terminated(signal.SIGTERM)
    assert main(["bench", "assignment", "--name", "a"]) == 143
    said = capsys.readouterr()
    run = store.resolve("a")
    assert run.status is Status.INTERRUPTED and "bench --resume a" in said.err and "4.9a" in said.out
    text = (run.path / "report.en.md").read_text()
    assert "/figures/bench_precision.png)" in text and "data:image/png" in (run.path / "report.zh.html").read_text()
    assert "3,517.58 GB" in text and "fp16 terms, fp32 sum" in text
    begun = suite.read_state(run).stages
    assert [stage.done for stage in begun] == [True, False, False, False, False]

    planted.clear()
    assert main(["bench", "--resume", "a"]) == 3
    stages = {stage.name: stage for stage in suite.read_state(run).stages}
    assert [name for name, stage in stages.items() if not stage.done] == ["sync", "buckets"]
    assert [stages[name].run for name in FEW] == [
        stage.run for stage in begun[:2]
    ] and "planted: no ranks" in capsys.readouterr().err

    monkeypatch.setattr(suite, "run_comparison", lambda run, *_, **__: None)
    made = len(store.list())
    assert main(["bench", "--resume", "a", "--json"]) == 0
    found = states(capsys.readouterr().out)
    assert len(store.list()) == made and list(found) == [question.number for question in QUESTIONS]
    assert {found[number] for number in ("1.3", "4.2", "4.9a", "5.1")} == {"answered"} and found["4.4"] == "needs_gpu"


KILLED = """
import os, signal
from unit.bench.test_bench_run import launched_at_once
from unit.experiment.test_assignment_suite import FEW
from dynbench.bench import bench_run
from dynbench.cli.main import main
from dynbench.experiment.assignment import suite

class Kills(dict):
    def get(self, number):
        return os.kill(os.getpid(), signal.SIGKILL) if number == 30 else None

bench_run.launch_ranks, suite.ORDER, suite.SMALL = launched_at_once(Kills()), tuple(FEW), FEW
main(["bench", "assignment", "--name", "a"])
"""


@pytest.mark.slow
def test_what_a_killed_list_has_measured_is_not_measured_again(
    store: RunStore, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed outright before case 30 of its second benchmark, which leaves no time to write anything."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=os.environ | path, capture_output=True, text=True, timeout=100
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    begun = {stage.name: stage.run for stage in suite.read_state(store.resolve("a")).stages if stage.run}
    assert list(begun) == list(FEW)

    measured: list[str] = []

    def measure(benchmark: Benchmark, case: Case, context: RankContext) -> list[Row]:
        measured.append(case.name)
        return rows_of(benchmark, case, context)

    monkeypatch.setattr(test_bench_run, "rows_of", measure)
    monkeypatch.setattr(suite, "run_comparison", lambda run, *_, **__: None)
    assert main(["bench", "--resume", "a", "-q"]) == 0
    assert measured == [case.name for case in suite._benchmark("accounting", False).cases()][30:]
    assert begun.items() <= {stage.name: stage.run for stage in suite.read_state(store.resolve("a")).stages}.items()
    measured.clear()
    assert main(["bench", "--resume", "a", "-q"]) == 0 and not measured


def test_a_stage_that_was_removed_is_measured_anew_and_a_path_names_its_registry(
    store: RunStore, planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path
) -> None:
    assert main(["bench", "assignment", "--name", "a", "--json"]) == 3
    shown = json.loads(capsys.readouterr().out)
    run = store.resolve("a")
    assert (shown["name"], shown["run"]["id"], shown["error"]["kind"]) == ("assignment", run.id, "worker")
    assert {each["number"] for each in shown["questions"]} == {question.number for question in QUESTIONS}
    kept, gone, *_ = (stage.run for stage in suite.read_state(run).stages)
    assert kept is not None and gone is not None
    store.remove(Run(store.root / gone))

    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "other"))
    monkeypatch.setattr(suite, "run_comparison", lambda run, *_, **__: None)
    assert main(["report", str(run.path), "-o", "-"]) == 0 and kept in capsys.readouterr().out
    assert main(["bench", "--resume", str(run.path), "-q"]) == 0
    stages = [stage.run for stage in suite.read_state(run).stages]
    assert (
        stages[0] == kept
        and stages[1] not in (None, gone)
        and all((store.root / str(each)).exists() for each in stages)
    )
    assert not (tmp_path / "other").exists()


def test_a_stage_leads_nowhere_else(store: RunStore, planted: Planted, capsys: Output, tmp_path: Path) -> None:
    planted[0] = Terminated(signal.SIGTERM)
    assert main(["bench", "assignment", "--name", "a"]) == 143
    run = store.resolve("a")
    (stage,) = (store.root / stage.run for stage in suite.read_state(run).stages if stage.run is not None)
    precious = tmp_path / "rows.jsonl"
    precious.touch()
    (stage / "ranks" / "rows.jsonl").unlink(missing_ok=True)
    (stage / "ranks" / "rows.jsonl").symlink_to(precious)
    for words in (["report", "a"], ["bench", "--resume", "a"]):
        assert main(words) == 2
        assert "leads out of the folder" in capsys.readouterr().err
    state = json.loads((run.path / suite.FILE).read_text())
    state["stages"][0]["run"] = f"../{tmp_path.name}/{stage.name}"
    (run.path / suite.FILE).write_text(json.dumps(state))
    for words in (["report", "a"], ["bench", "--resume", "a"]):
        assert main(words) == 2
        assert "is no id of a run" in capsys.readouterr().err
    assert precious.read_text() == ""


def test_a_stage_that_cannot_be_read_costs_its_own_answers_alone(
    store: RunStore, planted: Planted, capsys: Output, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["bench", "assignment", "--name", "a"]) == 3
    run = store.resolve("a")
    rows = next(store.root / str(stage.run) for stage in suite.read_state(run).stages) / "ranks" / "rows.jsonl"
    rows.write_text("{no row\n" + rows.read_text())
    (run.path / "report.en.md").unlink()
    capsys.readouterr()
    assert main(["bench", "--resume", "a", "--json"]) == 3
    said = capsys.readouterr()
    found = states(said.out)
    assert found["1.3"] != "answered" and found["5.1"] == "answered"
    assert "3,517.58 GB" in (run.path / "report.en.md").read_text()
    assert main(["report", "a", "-o", "-"]) == 0
    warned = [line for line in caplog.messages if "taken for not measured" in line]
    assert len(warned) == 1 and "rows.jsonl" in warned[0] and "runs rm" in warned[0]


def test_another_process_is_at_it(store: RunStore, planted: Planted, capsys: Output) -> None:
    planted[0] = Terminated(signal.SIGTERM)
    assert main(["bench", "assignment", "--name", "a"]) == 143
    capsys.readouterr()
    run = store.resolve("a")
    run.update(status="running")
    run.update(host="elsewhere")
    assert main(["bench", "--resume", "a"]) == 2
    said = capsys.readouterr()
    assert "is running in process" in said.err and not said.out and run.status is Status.RUNNING


def test_its_reports_are_written_anew(store: RunStore, planted: Planted, capsys: Output, tmp_path: Path) -> None:
    planted[0] = Terminated(signal.SIGTERM)
    assert main(["bench", "assignment"]) == 143
    (run,) = (each for each in store.list() if suite.holds_assignment(each))
    pages = {path.name for path in run.path.glob("report.*")}
    assert pages == {f"report.{language}.{form}" for language in ("en", "zh") for form in ("md", "html")}
    out = tmp_path / "mine.html"
    assert main(["report", run.id, "--lang", "zh", "-o", str(out)]) == 0
    assert '<html lang="zh-CN">' in out.read_text() and "系统作业" in out.read_text()
    assert main(["report", run.id, "--solve"]) == 2
    assert main(["bench", "assignment", "--set", "iterations=3"]) == 2
    assert "takes no --set" in capsys.readouterr().err


def test_recipes_are_short_and_have_the_arms_that_questions_ask_for() -> None:
    for name, (arms, _) in suite.RECIPES.items():
        recipe = suite._short(name)
        assert tuple(recipe.arms) == tuple(arms) and recipe.launches.count == 1 and recipe.baseline in recipe.arms
        assert all(config.train.steps <= 16 for config in recipe.arms.values())

"""The whole list, stage by stage: what is done is kept and not done again, and reports are written at every end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from unit.bench import test_bench_run
from unit.bench.test_bench_run import launched_at_once

from dynbench.bench import bench_run
from dynbench.bench.accounting import Accounting
from dynbench.bench.rank import rows_of
from dynbench.cli.main import main
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.rank.toy_check import Checked
from dynbench.errors import Terminated, WorkerFailed
from dynbench.experiment.assignment import suite
from dynbench.experiment.assignment.questions import QUESTIONS
from dynbench.plugins.benchmarks import AccountingOptions
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]
Planted = dict[int, BaseException]
FEW = {"precision": ("features=16", "samples=4", "iterations=2", "warmup=0"), "accounting": ()}


@pytest.fixture
def planted(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Two benchmarks and the check, measured in this process; the comparisons fail. Before a row, what is planted."""

    def check(names: Sequence[str], ranks: int) -> Iterator[Checked]:
        yield from (Checked(name, "sgd", ranks, 1e-17, "weight", True, True) for name in names)

    found: Planted = {}
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once(found))
    monkeypatch.setattr(toy_ranks, "check_strategies", check)
    monkeypatch.setattr(suite, "run_comparison", Mock(side_effect=WorkerFailed("planted: no ranks", rank=0)))
    monkeypatch.setattr(suite, "ORDER", tuple(FEW))
    monkeypatch.setattr(suite, "SMALL", FEW)
    return found


@pytest.fixture
def begun(store: RunStore, planted: Planted, capsys: Output) -> Run:
    """The list, interrupted in its second benchmark."""
    planted[30] = Terminated(signal.SIGTERM)
    assert main(["bench", "assignment", "--name", "a"]) == 143
    planted.clear()
    run = store.resolve("a")
    said = capsys.readouterr()
    assert run.status is Status.INTERRUPTED and "bench --resume a" in said.err and "4.9a" in said.out
    return run


def states(shown: str) -> dict[str, str]:
    return {each["number"]: each["state"] for each in json.loads(shown)["questions"]}


def stages_of(run: Run) -> dict[str, str | None]:
    return {stage.name: stage.run for stage in suite.read_state(run).stages}


def test_the_list_goes_on_where_it_was_interrupted(
    store: RunStore, begun: Run, monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path
) -> None:
    """What is done is kept, what was removed is measured anew, and a path names its registry."""
    assert "/figures/bench_precision.png)" in (begun.path / "report.en.md").read_text()
    assert "data:image/png" in (begun.path / "report.zh.html").read_text()
    assert [stage.done for stage in suite.read_state(begun).stages] == [True, False, False, False, False]
    kept, gone, *_ = stages_of(begun).values()
    assert kept is not None and gone is not None

    monkeypatch.setattr(test_bench_run, "rows_of", measured := Mock(wraps=rows_of))
    assert main(["bench", "--resume", "a", "--json"]) == 3
    assert [call.args[1] for call in measured.call_args_list] == Accounting(AccountingOptions()).cases()[30:]
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["name"], shown["run"]["id"], shown["error"]["kind"]) == ("assignment", begun.id, "worker")
    assert "planted: no ranks" in err
    assert [stage.name for stage in suite.read_state(begun).stages if not stage.done] == ["sync", "buckets"]
    assert [*stages_of(begun).values()][:2] == [kept, gone]

    monkeypatch.setattr(suite, "run_comparison", Mock())
    made = len(store.list())
    assert main(["bench", "--resume", "a", "--json"]) == 0
    found = states(capsys.readouterr().out)
    assert len(store.list()) == made and list(found) == [question.number for question in QUESTIONS]
    assert {found[number] for number in ("1.3", "4.2", "4.9a", "5.1")} == {"answered"} and found["4.4"] == "needs_gpu"

    store.remove(Run(store.root / gone))
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "other"))
    assert main(["report", str(begun.path), "-o", "-"]) == 0 and kept in capsys.readouterr().out
    assert main(["bench", "--resume", str(begun.path), "-q"]) == 0
    first, second, *others = stages_of(begun).values()
    assert first == kept and second not in (None, gone)
    assert all((store.root / str(each)).exists() for each in (first, second, *others))
    assert not (tmp_path / "other").exists()


def test_a_stage_leads_nowhere_else(store: RunStore, begun: Run, capsys: Output, tmp_path: Path) -> None:
    state = json.loads((begun.path / suite.FILE).read_text())
    stage = state["stages"][1]["run"]
    precious, rows = tmp_path / "rows.jsonl", store.root / stage / "ranks" / "rows.jsonl"
    precious.touch()
    rows.unlink()
    rows.symlink_to(precious)
    for said in ("leads out of the folder", "is no id of a run"):
        for words in (["report", "a"], ["bench", "--resume", "a"]):
            assert main(words) == 2
            assert said in capsys.readouterr().err
        state["stages"][1]["run"] = f"../{tmp_path.name}/{stage}"
        (begun.path / suite.FILE).write_text(json.dumps(state))
    assert precious.read_text() == ""


def test_a_stage_that_cannot_be_read_costs_its_own_answers_alone(
    store: RunStore, begun: Run, capsys: Output, caplog: pytest.LogCaptureFixture
) -> None:
    rows = store.root / str(stages_of(begun)["precision"]) / "ranks" / "rows.jsonl"
    rows.write_text("{no row\n" + rows.read_text())
    (begun.path / "report.en.md").unlink()
    assert main(["bench", "--resume", "a", "--json"]) == 3
    found = states(capsys.readouterr().out)
    assert found["1.3"] != "answered" and found["5.1"] == "answered"
    assert "3,517.58 GB" in (begun.path / "report.en.md").read_text()
    assert main(["report", "a", "-o", "-"]) == 0
    warned = [line for line in caplog.messages if "taken for not measured" in line]
    assert len(warned) == 1 and "rows.jsonl" in warned[0] and "runs rm" in warned[0]


def test_its_reports_are_written_anew_and_another_process_is_let_be(begun: Run, capsys: Output, tmp_path: Path) -> None:
    pages = {path.name for path in begun.path.glob("report.*")}
    assert pages == {f"report.{language}.{form}" for language in ("en", "zh") for form in ("md", "html")}
    out = tmp_path / "mine.html"
    assert main(["report", "a", "--lang", "zh", "-o", str(out)]) == 0
    assert '<html lang="zh-CN">' in out.read_text() and "系统作业" in out.read_text()
    assert main(["report", "a", "--solve"]) == 2
    assert main(["bench", "assignment", "--set", "iterations=3"]) == 2
    assert "takes no --set" in capsys.readouterr().err
    begun.update(status="running")
    begun.update(host="elsewhere")
    assert main(["bench", "--resume", "a"]) == 2
    said = capsys.readouterr()
    assert "is running in process" in said.err and not said.out and begun.status is Status.RUNNING


def test_recipes_are_short_and_have_the_arms_that_questions_ask_for() -> None:
    for name, (arms, _) in suite.RECIPES.items():
        recipe = suite._short(name)
        assert tuple(recipe.arms) == tuple(arms) and recipe.launches.count == 1 and recipe.baseline in recipe.arms
        assert all(config.train.steps <= 16 for config in recipe.arms.values())

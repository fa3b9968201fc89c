"""The systems assignment: every question has an answer only from rows, and the whole list is measured stage by stage.

A statement is what the rows choose. What is done is kept and not done again, and reports are written at every end.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pytest
from golden import corpus
from unit.bench import test_bench_run
from unit.bench.test_bench_run import launched_at_once
from unit.experiment.conftest import NOTHING, command

from dynbench.bench import bench_run
from dynbench.bench.accounting import Accounting
from dynbench.bench.base import Row
from dynbench.bench.rank import rows_of
from dynbench.config.recipes import find_recipe
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.engine.rank.toy_check import Checked
from dynbench.errors import Terminated, WorkerFailed
from dynbench.experiment.assignment import suite
from dynbench.experiment.assignment.questions import CHECKED, QUESTIONS, State, answers, render
from dynbench.experiment.assignment.rows import CHECK, Statement, Table, check_table, matches
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import AccountingOptions
from dynbench.report import LANGUAGES
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

FIELDS = {field.name for field in fields(Row)}


@cache
def recorded() -> Mapping[str, list[Row]]:
    """Rows by what they are of: those of benchmarks as the whole list left them once, those of comparisons made up."""
    with TemporaryDirectory() as folder:
        corpus.unpack("bench", root := Path(folder))
        (run,) = map(Run, root.glob("*-assignment-*"))
        found = {table.source: list(table.rows) for table in suite.tables_of(run, RunStore(root))}
    tiled = [each for each in found["flash"] if each.columns["way"] == "flash_torch"]
    found["flash"] += laid_over(tiled, way="flash_compiled")
    about = {"model": "toy", "ranks": 2, "calls": 5, "comm": 3.0, "exposed": 1.0, "beyond": 1.0, "hidden": 0.7}
    steps = {"ddp": 8.0, "naive": 12.0, "flat": 9.0, "overlap": 7.0, "bucketed": 8.0, "zero1": 9.0}
    arms = [row(name, ms, strategy=name, **about) for name, ms in steps.items()]
    calls = {"one": 1, "mb10": 10, "mb1": 100}
    buckets = [row(name, 9.0, strategy="bucketed", comm=1.0, calls=count) for name, count in calls.items()]
    return found | {"sync": arms, "buckets": laid_over(buckets, {"case": "mb10"}, **at(5.0))}


def row(case: str, ms: float, **columns: Any) -> Row:
    return Row(case, [], "float32", "cpu", unit="ms", n=5, columns=columns, **at(ms))


def at(value: float) -> dict[str, Any]:
    """What a row says that was this in every repeat."""
    return {"mean": value, "p50": value, "sd": 0.0}


def laid_over(rows: Sequence[Row], where: Mapping[str, object] = NOTHING, **values: Any) -> list[Row]:
    """The rows with other values of fields, or else of columns, in those that match."""
    own = {key: value for key, value in values.items() if key in FIELDS}
    more = {key: value for key, value in values.items() if key not in FIELDS}
    return [replace(each, **own, columns={**each.columns, **more}) if matches(each, where) else each for each in rows]


def checked(passed: bool = True) -> list[Checked]:
    return [
        Checked(name, optimizer, 2, 1e-16 if passed else 1e-2, "weight", True, passed)
        for name, optimizer in product(CHECKED, ("sgd", "adamw"))
    ]


def everything(*, passed: bool = True, **changes: Sequence[Row]) -> list[Table]:
    """What was recorded, and what is given in its place."""
    found = {**recorded(), **changes}
    tables = [Table(source, f"{source}-run", rows) for source, rows in found.items() if source != CHECK]
    return [*tables, check_table(Run(Path("suite")), checked(passed))]


def keys(number: str, tables: Sequence[Table]) -> list[str]:
    (answer,) = (each for each in answers(tables) if each.question.number == number)
    return [f"{each.block}.{each.case}" for each in answer.statements]


def sections(tables: Sequence[Table], language: str = "en") -> dict[str, str]:
    """What is said of every question, by its number."""
    found = re.split(r"^### ", render(tables, "x", language), flags=re.MULTILINE)[1:]
    return {text.split(maxsplit=1)[0]: text for text in found}


def section(number: str, **changes: Sequence[Row]) -> str:
    return sections(everything(**changes))[number]


def states(tables: Sequence[Table]) -> dict[str, State]:
    return {each.question.number: each.state for each in answers(tables)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_question_is_answered_or_says_which_command_makes_its_rows(language: str) -> None:
    answered = sections(everything(), language)
    assert list(answered) == [question.number for question in QUESTIONS]
    assert not [text for text in answered.values() if "{" in text or "None" in text]
    without = sections([], language)
    asked = {question.number: question.gpu or question.command for question in QUESTIONS}
    assert {number: command for number, command in asked.items() if f"`{command}`" not in without[number]} == {}


def test_nothing_is_answered_without_a_row() -> None:
    assert {*states([]).values()} == {"needs_gpu", "not_measured"}
    for answer in answers(everything()):
        used = [row for rows in answer.runs.values() for row in rows]
        assert bool(answer.statements) == bool(used), answer.question.number
        assert all(row.status in ("ok", "oom") for row in used)
    with pytest.raises(ValueError, match="nothing is said without a row"):
        Statement("flat_step", [])


def test_commands_are_of_benchmarks_and_recipes_that_there_are() -> None:
    for question in QUESTIONS:
        for words in (line.split() for line in (question.command, question.gpu) if line):
            if words[:2] == ["dynbench", "bench"]:
                assert words[2] in (*BENCHMARKS, "assignment")
            elif words[:2] == ["dynbench", "compare"]:
                assert find_recipe(words[2]).is_file()


def test_only_rows_of_a_gpu_answer_what_is_asked_of_one() -> None:
    small = states(everything())
    assert small["2.1"] == small["1.1b"] == small["4.1"] == "answered_small" and small["1.3"] == "answered"
    on_gpu = everything(attention=laid_over(recorded()["attention"], device="NVIDIA H100"))
    assert states(on_gpu)["2.1"] == "answered"


SHORT, LONG = at(1e-6), at(1e6)
OF_HALF, OF_FLASH = {"dtype": "bfloat16"}, {"way": ("flash_torch", "flash_compiled")}
OF_PART = {"phase": "step", "part": "kind", "kernel": "matmul"}
SHARDED, SUM = {"way": "zero1"}, {"case": "sum: terms and sum in fp16"}
CASES: list[tuple[str, Mapping[str, object], dict[str, Any]]] = [
    ("1.1b model_phases.steady", {}, {"sd": 0.0}),
    ("1.1c warmup.none", {"phase": "step"}, at(5.0)),
    ("1.2a kernels_timer.agree", {"part": ("total", "timer")}, at(5.0)),
    ("1.2b kernels_most.other", {"phase": "forward", "part": "kernel"}, {"kernel": "another"}),
    ("1.2d kernels_matmul.falls", OF_PART, {"share": 0.01}),
    ("1.2d kernels_matmul.stays", {"part": "kind", "kernel": "matmul"}, {"share": 0.5}),
    ("1.2e softmax.cheap", {"part": "range", "kernel": "softmax"}, SHORT),
    ("1.3 half_sums.other", SUM, {"reference_error": 0.0}),
    ("1.4a autocast_norm.full", {"study": "type"}, {"shown": "float32"}),
    ("1.4b norm_bf16.full", {"study": "type"}, {"shown": "float32"}),
    ("1.4c mixed_precision.faster", OF_HALF, SHORT),
    ("1.4c mixed_precision.slower", OF_HALF, LONG),
    ("1.5a memory_phases.alike", {"quantity": "peak"}, at(5.0)),
    ("1.5c memory_mixed.less", {**OF_HALF, "context": 64}, SHORT),
    ("1.5c memory_mixed.more", OF_HALF, LONG),
    ("1.5d residual.off", {"quantity": "residual"}, {"formula_mb": 1e6}),
    ("2.1 attention_growth.below_quadratic", {"way": "plain"}, {"saved_mb": 5.0}),
    ("2.1 attention_tiled.not", OF_FLASH, {"saved_mb": 1e6}),
    ("2.2a against_plain.faster", {"way": "compiled"}, SHORT),
    ("2.2b compiled_model.faster", {"compiled": 1}, SHORT),
    ("2.2b compiled_model.slower", {"compiled": 1}, LONG),
    ("3.1 flash_errors.wrong", {}, {"reference_error": 1e-3}),
    ("3.1 flash_errors.wrong", {}, {"not_finite": 7}),
    ("3.2 flash_errors.wrong", {}, {"reference_error": None, "not_finite": 7}),
    ("3.2 compiled_backward.faster", {"way": "flash_compiled"}, SHORT),
    ("3.2 compiled_backward.slower", {"way": "flash_compiled"}, LONG),
    ("3.3 against_plain.slower", OF_FLASH, LONG),
    ("3.3 against_plain.both", {}, {"sd": 1e6}),
    ("4.1 all_reduce.wrong", {}, {"#wrong": 3}),
    ("4.1 all_reduce_sizes.latency", {}, at(5.0)),
    ("4.1 all_reduce_processes.as_ring", {}, at(5.0)),
    ("4.1 all_reduce_processes.slower", {}, {"shared": ""}),
    ("4.1 all_reduce_processes.once", {"processes": (4, 6)}, {"status": "skipped"}),
    ("4.4 flat_step.slower", {"strategy": "flat"}, LONG),
    ("4.6 overlap_step.slower", {"strategy": "overlap"}, LONG),
    ("4.6 overlap_hidden.competes", {}, {"beyond": 9.0}),
    ("4.6 overlap_hidden.noisy", {}, {"beyond": -9.0}),
    ("4.8a bucket_step.few", {"case": "one"}, SHORT),
    ("4.8a bucket_step.many", {"case": "mb1"}, SHORT),
    ("5.2a sharded_state.other", {**SHARDED, "part": "optimizer"}, LONG),
    ("5.2a sharded_total.some", {**SHARDED, "part": "total"}, SHORT),
    ("5.2a sharded_total.less", {**SHARDED, "part": ("total", "peak")}, SHORT),
    ("5.2b sharded_step.faster", SHARDED, SHORT),
    ("5.2b sharded_step.slower", SHARDED, LONG),
    ("5.2c sharded_traffic.more", SHARDED, LONG),
    ("5.2c sharded_traffic.less", SHARDED, SHORT),
]
"""What is said of a question with other values in rows, instead of what is said of `everything`."""


@pytest.mark.slow
@pytest.mark.parametrize(("instead", "where", "values"), CASES)
def test_the_rows_choose_what_is_said(instead: str, where: Mapping[str, object], values: dict[str, Any]) -> None:
    number, key = instead.split()
    (source,) = (question.source for question in QUESTIONS if question.number == number)
    changed = everything(**{source: laid_over(recorded()[source], where, **values)})
    first, second = keys(number, everything()), keys(number, changed)
    assert key in second and key not in first
    assert [each for each in first if each.startswith(f"{key.partition('.')[0]}.") and each in second] == []


def test_a_share_below_what_counts_is_not_rounded_up_to_it() -> None:
    others = [each for each in recorded()["nsys"] if each.columns["part"] == "kind"]
    told = section("1.2c", nsys=laid_over(others, share=0.0188))
    assert "no kind of kernel takes 2 %" in told and "| 1.9\N{NO-BREAK SPACE}% |" in told


def test_the_largest_shape_is_spoken_of_in_any_order_of_the_rows_and_where_others_differ() -> None:
    attention, flash = recorded()["attention"], recorded()["flash"]
    for step in (1, -1):
        assert "up to length 1024, width 64" in section("2.1", attention=attention[::step])
        told = section("3.3", flash=flash[::step])
        assert "length 2048, width 64" in told and "in 6 of the 9 pairs" in told and "lengths up to 512" in told
    assert "does not win everywhere" not in section("3.3", flash=laid_over(flash, OF_FLASH, **SHORT))


def test_models_are_not_mixed_up() -> None:
    """Two sizes: growth is that of one over its contexts, and the largest tensors are the last one's."""
    memory = recorded()["memory"]
    small = laid_over(laid_over(memory, size="small", **at(30.0)), {"context": 128}, **at(45.0))
    told = section("1.5b", memory=[*memory, *small])
    assert "of small" in told and "grows 1.500 times from 64 tokens to 128" in told
    assert "of small, 128 tokens, is 45" in section("1.5e", memory=[*memory, *small])


def test_buckets_that_hold_all_are_the_fewest_whichever_of_them_is_fastest() -> None:
    one, *others = recorded()["buckets"]
    alike = laid_over([one], case="mb1000", **at(4.0))
    assert "bucket_step.few" in keys("4.8a", everything(buckets=[one, *alike, *others]))


def test_times_that_fall_with_the_size_are_told() -> None:
    first, *others = recorded()["collectives"]
    shown = f"(`{first.case}`)"
    assert shown in section("4.1", collectives=[*laid_over([first], **LONG), *others]) and shown not in section("4.1")


def test_figures_stand_with_their_questions() -> None:
    pictures = {("memory-run", "bench_memory"): "a/b.png", ("flash-run", "bench_memory"): "wrong.png"}
    pictures["sync-run", "comm_timeline"] = "naive_and_overlap.png"
    text = render(everything(), "x", "en", pictures)
    assert text.count("a/b.png") == 1 and "wrong.png" not in text
    assert text.index("a/b.png") > text.index("### 1.5b")
    assert text.index("### 4.6") < text.index("naive_and_overlap.png") < text.index("### 4.7")


def test_a_strategy_that_trains_other_weights_is_told() -> None:
    for number, many in (("4.2", 1), ("4.5", 1), ("4.7", 1), ("5.1", 2)):
        assert keys(number, everything(passed=False)) == ["strategy_check.other"] * many


def test_what_ran_out_of_memory_is_an_answer_and_what_was_skipped_is_none() -> None:
    attention = recorded()["attention"]
    large = {"length": max(each.columns["length"] for each in attention)}
    out = laid_over(attention, {**large, "way": "plain"}, status="oom", mean=None, memory_limit_mb=4000.0)
    assert "attention_exhausted.out" in keys("2.1", everything(attention=out))
    told = section("2.1", attention=laid_over(out, OF_FLASH, peak_mb=7.0))
    assert "4,000 MB" in told and "FlashAttention-2 peaks at 7" in told
    told = section("2.2a", attention=laid_over(attention, status="skipped", reason="no compiler <b>here</b>"))
    assert "Needs a GPU" in told and "no compiler" in told and "<b>" not in told


def test_the_name_of_a_folder_is_no_markup() -> None:
    assert "`a\\](b) &lt;c>`" in render([], "a](b) <c>", "en")


@pytest.mark.parametrize("given", ["no columns", "no numbers", "zeros", "texts"])
def test_rows_of_a_stranger_are_no_error(given: str) -> None:
    values = {"no columns": {"columns": {}}, "no numbers": dict.fromkeys(at(0.0)), "zeros": at(0.0)}
    for source in recorded().values():
        texts = [{"columns": dict.fromkeys(each.columns, "x")} for each in source]
        rows = [replace(each, **values.get(given, text)) for each, text in zip(source, texts, strict=True)]
        assert render([Table(name, "run", rows) for name in recorded()], "x", "zh")


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
    assert command("bench assignment --name a") == 143
    planted.clear()
    run = store.resolve("a")
    said = capsys.readouterr()
    assert run.status is Status.INTERRUPTED and "bench --resume a" in said.err and "4.9a" in said.out
    return run


def states_shown(shown: str) -> dict[str, str]:
    return {each["number"]: each["state"] for each in json.loads(shown)["questions"]}


def stages_of(run: Run) -> dict[str, str | None]:
    return {stage.name: stage.run for stage in suite.read_state(run).stages}


@pytest.mark.slow
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
    assert command("bench --resume a --json") == 3
    assert [call.args[1] for call in measured.call_args_list] == Accounting(AccountingOptions()).cases()[30:]
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["name"], shown["run"]["id"], shown["error"]["kind"]) == ("assignment", begun.id, "worker")
    assert "planted: no ranks" in err
    assert [stage.name for stage in suite.read_state(begun).stages if not stage.done] == ["sync", "buckets"]
    assert [*stages_of(begun).values()][:2] == [kept, gone]

    monkeypatch.setattr(suite, "run_comparison", Mock())
    made = len(store.list())
    assert command("bench --resume a --json") == 0
    found = states_shown(capsys.readouterr().out)
    assert len(store.list()) == made and list(found) == [question.number for question in QUESTIONS]
    assert {found[number] for number in ("1.3", "4.2", "4.9a", "5.1")} == {"answered"} and found["4.4"] == "needs_gpu"

    store.remove(Run(store.root / gone))
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "other"))
    assert command(f"report {begun.path} -o -") == 0 and kept in capsys.readouterr().out
    assert command(f"bench --resume {begun.path} -q") == 0
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
        for line in ("report a", "bench --resume a"):
            assert command(line) == 2
            assert said in capsys.readouterr().err
        state["stages"][1]["run"] = f"../{tmp_path.name}/{stage}"
        (begun.path / suite.FILE).write_text(json.dumps(state))
    assert precious.read_text() == ""


@pytest.mark.slow
def test_a_stage_that_cannot_be_read_costs_its_own_answers_alone(
    store: RunStore, begun: Run, capsys: Output, caplog: pytest.LogCaptureFixture
) -> None:
    rows = store.root / str(stages_of(begun)["precision"]) / "ranks" / "rows.jsonl"
    rows.write_text("{no row\n" + rows.read_text())
    (begun.path / "report.en.md").unlink()
    assert command("bench --resume a --json") == 3
    found = states_shown(capsys.readouterr().out)
    assert found["1.3"] != "answered" and found["5.1"] == "answered"
    assert "3,517.58 GB" in (begun.path / "report.en.md").read_text()
    assert command("report a -o -") == 0
    warned = [line for line in caplog.messages if "taken for not measured" in line]
    assert len(warned) == 1 and "rows.jsonl" in warned[0] and "runs rm" in warned[0]


def test_its_reports_are_written_anew_and_another_process_is_let_be(begun: Run, capsys: Output, tmp_path: Path) -> None:
    pages = {path.name for path in begun.path.glob("report.*")}
    assert pages == {f"report.{language}.{form}" for language in ("en", "zh") for form in ("md", "html")}
    out = tmp_path / "mine.html"
    assert command(f"report a --lang zh -o {out}") == 0
    assert '<html lang="zh-CN">' in out.read_text() and "系统作业" in out.read_text()
    assert command("report a --solve") == 2
    assert command("bench assignment --set iterations=3") == 2
    assert "takes no --set" in capsys.readouterr().err
    begun.update(status="running")
    begun.update(host="elsewhere")
    assert command("bench --resume a") == 2
    said = capsys.readouterr()
    assert "is running in process" in said.err and not said.out and begun.status is Status.RUNNING


def test_recipes_are_short_and_have_the_arms_that_questions_ask_for() -> None:
    for name, (arms, _) in suite.RECIPES.items():
        recipe = suite._short(name)
        assert tuple(recipe.arms) == tuple(arms) and recipe.launches.count == 1 and recipe.baseline in recipe.arms
        assert all(config.train.steps <= 16 for config in recipe.arms.values())

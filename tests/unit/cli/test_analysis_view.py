"""What `analyze` prints of comparisons: few arms beside each other, many an arm a row, and a line per verdict."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.analysis.conftest import Fake, build_run

from dynbench.analysis import analyze
from dynbench.cli import console
from dynbench.cli.main import main
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

COSTS = ("tokens", "tokens_sq", "attention")
VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2", "launch.comm_model=none")
Show = Callable[..., list[str]]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


@pytest.fixture
def show(store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    """`show(*words, width=100)`: stdout of `analyze` on a terminal of that width, in lines; no figures are drawn."""
    monkeypatch.setattr(analyze, "draw_figures", lambda *_, **__: [])

    def call(*words: str, width: int = 100) -> list[str]:
        shown = console._Console(width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(console, "stdout", shown)
        assert main(["analyze", *words, "--results", str(store.root)]) == 0
        return capsys.readouterr().out.splitlines()

    return call


def launches(store: RunStore, count: int = 2, **fake: object) -> list[str]:
    """Ids of launches of one arm, of as many seeds."""
    return [build_run(store, Fake(seed=seed, steps=10, warmup_steps=2, **fake)).id for seed in range(count)]  # type: ignore[arg-type]  # typed by Fake


def arms(store: RunStore, count: int, **fake: object) -> list[str]:
    """Launches of `static`, then of as many candidates as make up the count."""
    found = launches(store, **fake)
    for index in range(count - 1):
        over = (f"schedule.cost_type={COSTS[index % 3]}", f"schedule.attention_a={0.1 + 0.1 * (index // 3)}")
        found += launches(store, policy="partition", overrides=over, **fake)
    return found


def verdicts(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r"[A-Z]{4,} +\S", line)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_many_arms_are_rows_below_an_overview_and_few_are_columns(store: RunStore, show: Show, count: int) -> None:
    named = arms(store, count)
    lines = show(*named, width=400)

    labels = [arm["name"] for arm in json.loads("".join(show(*named, "--json")))["arms"]]
    assert len(labels) == count
    headings = lines[0 if count < 4 else 1].split()
    assert (headings[:3] == ["arm", "verdict", "level"]) == (count > 3)
    if count > 3:
        assert [line[: len(label)] for line, label in zip(lines[2:], labels, strict=False)] == labels
        assert lines[2][len(labels[0]) :].split()[0] == "baseline"
        assert "step time" in lines
    else:
        assert all(label in lines[0] for label in labels)
        assert lines[1].startswith("step time, mean, ms") and "baseline" not in lines[0]
    assert len(verdicts(lines)) == count - 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_table_is_wider_than_the_terminal(store: RunStore, show: Show, width: int) -> None:
    lines = show(*arms(store, 3), width=width)
    table = lines[: next(index for index, line in enumerate(lines) if line.startswith("question: "))]
    assert max(map(len, table)) <= width and not any("…" in line for line in table)
    assert any("evaluation accuracy" in line or "eval. accuracy" in line for line in table)


@pytest.mark.slow
def test_quiet_says_what_the_whole_says_of_each_verdict(store: RunStore, show: Show) -> None:
    named = arms(store, 4)
    lines = show(*named, "-q")
    assert lines == verdicts(show(*named))
    number, ends = r"\d\.\d{3}", r"\[\d\.\d{3}, \d\.\d{3}\]"
    whole = rf"[A-Z]+ +\S.* {number}x static {ends}, level step, 2 launches"
    assert len(lines) == 3 and all(re.fullmatch(whole, line) for line in lines)
    told = [line for line in show(*named, width=100) if line.startswith(("(1.5x", "(95 %", "(bound"))]
    assert len(told) == 3 and max(map(len, lines + told)) <= 100


@pytest.mark.slow
def test_checks_that_advise_the_same_say_it_once(store: RunStore, show: Show) -> None:
    named = arms(store, 4)
    lines = show(*named)
    checks = json.loads("".join(show(*named, "--json")))["checks"]
    few = [check for check in checks if check["id"] == "few_launches"]
    assert len(few) == 3 and len({check["hint"] for check in few}) == 1
    start = lines.index(f"warn: few_launches: {few[0]['seen']} (limit: {few[0]['limit']})")
    assert [line.strip() for line in lines[start + 1 : start + 4]] == [few[1]["seen"], few[2]["seen"], few[0]["hint"]]
    assert [check["seen"] for check in checks if not any(check["seen"] in line for line in lines)] == []


def one(store: RunStore, show: Show, *words: str) -> str:
    (line,) = show(*words, "-q")
    return line


@pytest.mark.slow
def test_a_line_says_what_its_number_rests_on(store: RunStore, show: Show) -> None:
    static, part = launches(store), launches(store, policy="partition")
    assert one(store, show, static[0], part[0]).startswith("ESTIMATE  partition 1.")
    assert one(store, show, static[0], part[0]).endswith("x static, no interval, level step, 1 launch")

    other = launches(store, policy="partition", fingerprint="data-2")
    line = one(store, show, *static, *other, "--force")
    assert line.startswith("INCOMPARABLE  partition ") and line.endswith(", differs in env.data.fingerprint")
    assert any(line.startswith("  they differ in env.data.fingerprint") for line in show(*static, *other, "--force"))

    virtual = [*launches(store, overrides=VIRTUAL), *launches(store, policy="partition", overrides=VIRTUAL)]
    assert one(store, show, *virtual).endswith(", 2 launches, virtual ranks")


@pytest.mark.slow
def test_numbers_of_a_question_stand_below_the_verdict_of_a_few_arms_and_in_the_overview_of_many(
    store: RunStore, show: Show
) -> None:
    few = [*launches(store, noise=0.0), *launches(store, world_size=4, noise=0.0)]
    lines = show(*few)
    assert any(line.startswith("question: scaling, ") for line in lines)
    (told,) = (line for line in lines if line.startswith("  efficiency of the ranks: "))

    many = [*few, *launches(store, world_size=8, noise=0.0), *launches(store, world_size=16, noise=0.0)]
    lines = show(*many, width=300)
    assert not any(line.startswith("  efficiency") for line in lines)
    assert "efficiency" in lines[1] and told.rpartition(": ")[2] in lines[3]

    sizes = [(), ("train.precision=bf16",)]
    lines = show(*[run for over in sizes for run in launches(store, overrides=over)])
    assert any(line.startswith("  mean training loss: ") for line in lines)


@pytest.mark.slow
def test_arms_configured_alike_are_said_to_be(store: RunStore, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    again = analyze.analyze_runs
    first, second = launches(store), launches(store)

    def named(runs: list[Run], *others: object, **options: object) -> analyze.Report:
        found = {run.id: run for run in runs}
        options["arms"] = {"static": [found[key] for key in first], "again": [found[key] for key in second]}
        return again(runs, *others, **options)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(analyze, "analyze_runs", named)
    assert one(store, show, *first, *second).endswith(", 2 launches, configured alike")


@pytest.mark.slow
def test_partial_launches_are_left_out_below_their_verdict(store: RunStore, show: Show) -> None:
    named = [*arms(store, 4), build_run(store, Fake(seed=2, steps=10, warmup_steps=2, steps_written=5)).id]
    lines = show(*named)
    assert any(line.startswith("partial: ") for line in lines)
    after = [lines[lines.index(line) + 1] for line in verdicts(lines)]
    assert all(line.startswith("  left out: ") for line in after)


@pytest.mark.slow
def test_the_forms_of_many_arms(store: RunStore, show: Show) -> None:
    named = arms(store, 5)
    shown = "\n".join(show(*named, "--format", "md"))
    assert shown.startswith("| arm | verdict | level | speed-up | 95 % interval, joint |")
    page = (store.resolve("@latest:analyze").path / "summary.md").read_text(encoding="utf-8")
    assert [block for block in shown.split("\n\n") if block not in page] == []
    assert page.index("| arm | verdict") < page.index("times as fast as") < page.index("**Step time**")

    rows = list(csv.DictReader(io.StringIO("\n".join(show(*named, "--format", "csv")))))
    labels = [name for name in rows[0] if name not in ("metric", "title", "unit") and not name.endswith("_percent")]
    assert len(labels) == 5 and rows[0]["metric"] == "step_time_ms.mean"

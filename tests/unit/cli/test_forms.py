"""`-q` and `--format`: stdout holds the result and nothing else, as lines for a script or as a whole table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import capacity_row, probe_record
from unit.bench.test_bench_run import launched_at_once
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.bench import bench_run
from dynbench.cli import common, health
from dynbench.cli.common import Settings
from dynbench.cli.health import expect
from dynbench.cli.main import COMMANDS, load_command
from dynbench.cli.options import command
from dynbench.cli.shipped import FOLDER
from dynbench.config.recipes import list_recipes
from dynbench.config.schema import Config, dump_config
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.experiment import training
from dynbench.experiment.training import NextTraining, TrainingResult
from dynbench.plugins import BENCHMARKS, COMPRESSORS, DATASETS, POLICIES, STRATEGIES
from dynbench.probe import prober
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import csv_text, pipes

SOLVE = "solve lognormal --steps 1 --world-size 2 --policy static,partition --no-figures"
BENCH = "bench collectives --set backend=gloo --set operations=all_reduce --set sizes_mib=1,10"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A run named `a`; a probe, a training, ranks and checks of the machine are made up."""
    run = RunStore(tmp_path / "results").create("train", "static", name="a")
    write_text(run.config_file, dump_config(Config()))
    run.update(status="completed", exit_code=0)
    record = probe_record(ranks=1, capacity=[capacity_row(0, 32, 9, 13), capacity_row(0, 64, 9, None)])
    monkeypatch.setattr(training, "run_training", lambda *_, **__: TrainingResult(run, {"policy": "static"}))
    monkeypatch.setattr(prober, "run_probe", lambda *_, **__: run)
    monkeypatch.setattr("dynbench.runs.probe_record.read_probe", lambda _: record)
    monkeypatch.setattr(training, "next_training", lambda *_: NextTraining(64, 110, None, 64, split_fits=True))
    monkeypatch.setattr("dynbench.analysis.figures.draw_figures", lambda *_: [])
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once({}))
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    checks = {"poor": (lambda _: expect(False, "x"), "y"), "fine": (lambda _: "x", "y")}
    monkeypatch.setattr(health, "CHECKS", checks)
    return run


def _latest(run: Run, command: str) -> str:
    return str(RunStore(run.path.parent).resolve(f"@latest:{command}").path)


QUIET: dict[str, Callable[[Run], list[str]]] = {
    "train": lambda run: [str(run.path)],
    "probe": lambda run: [str(run.path)],
    SOLVE: lambda run: [_latest(run, "solve")],
    "solve --list": lambda run: list(POLICIES),
    "data lengths -o {tmp}/x.csv": lambda run: [f"{run.path.parent.parent}/x.csv"],
    "runs ls": lambda run: [run.id],
    "runs show a": lambda run: [str(run.path)],
    "runs rm a --yes": lambda run: [str(run.path)],
    "runs rm --failed --yes": lambda run: [],
    "recipes ls": lambda run: list(list_recipes()),
    "recipes cp quickstart {tmp}/x.yaml": lambda run: [f"{run.path.parent.parent}/x.yaml"],
    "plugins policies": lambda run: list(POLICIES),
    "sync ls": lambda run: list(STRATEGIES),
    "sync check ddp": lambda run: ["ddp sgd 1e-17", "ddp adamw 2e-17"],
    "compress ls": lambda run: list(COMPRESSORS),
    BENCH: lambda run: [_latest(run, "bench")],
    "bench ls": lambda run: [*BENCHMARKS, "assignment"],
    "doctor": lambda run: ["poor"],
    "guide": lambda run: [path.stem for path in sorted(FOLDER.glob("*.md"))],
}
NOT_QUIET = {"analyze", "compare", "report", "eval", "generate", "tensorboard", "completion"}
"""With a comparison to show, in unit/experiment/test_compare.py; with a saved model, in engine/rank/test_saved.py; with
scalars, in test_trained.py."""
TABLES = {
    SOLVE: (["static", "partition"], "policy"),
    "solve --list": (list(POLICIES), "name"),
    "plugins datasets": (list(DATASETS), "name"),
    "sync ls": (list(STRATEGIES), "name"),
    "sync check flat": (["flat", "flat"], "strategy"),
    "compress ls": (list(COMPRESSORS), "name"),
    "recipes ls": (list(list_recipes()), "name"),
    "probe": (["32", "64"], "length_tokens"),
    BENCH: (["1048576", "10485760"], "size"),
}
NOT_TABLES = {"analyze", "compare", "runs"}
"""Over made-up rows, in unit/experiment/test_compare.py; a sweep in test_compare.py; runs in test_runs.py."""


def test_every_command_is_tried():
    def takes_format(name: str) -> bool:
        found = load_command(name)
        leaves = found.commands.values() if isinstance(found, click.Group) else [found]
        return any(parameter.name == "form" for leaf in leaves for parameter in leaf.params)

    assert {words.split()[0] for words in QUIET} | NOT_QUIET == set(COMMANDS)
    assert {words.split()[0] for words in TABLES} | NOT_TABLES == set(filter(takes_format, COMMANDS))


@pytest.mark.parametrize("words", QUIET)
def test_quiet_prints_the_result_only(words, run, tmp_path, cli):
    said = cli(f"{words.format(tmp=tmp_path)} -q --results {run.path.parent}")
    assert (said.lines, said.err) == (QUIET[words](run), "")


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")]


@pytest.mark.parametrize("words", TABLES)
def test_stdout_is_the_table_alone(words, run, tmp_path, cli):
    names, key = TABLES[words]
    said = {}
    for how in ("table", "csv", "md", "csv -q"):
        said[how] = cli(f"{words} --format {how} --results {tmp_path}/{how.split()[0]}")
    rows = list(csv.DictReader(io.StringIO(said["csv"].out)))
    assert [row[key] for row in rows] == names
    assert said["csv -q"].err == "" and said["csv -q"].out.count("\n") == said["csv"].out.count("\n")
    header, rule, *body = said["md"].out.splitlines()
    assert {len(cells_of(line)) for line in (header, rule, *body)} == {len(cells_of(header))}
    assert set(rule) <= set("|-: ") and len(body) == len(rows)
    for form in ("csv", "md"):
        shown, beside = (set(re.findall(r"^\S+", text, re.M)) for text in (said["table"].out, said[form].err))
        assert shown & {"folder", "capacity", "run"} <= beside


def test_json_and_a_table_are_not_both_on_stdout(cli):
    assert "--json and --format md" in cli("solve --list --json --format md", code=2).err


def test_a_command_says_the_rest_on_stderr(capsys):
    @command(table=True)
    def anything(settings: Settings) -> None:
        common.print_lines("before")
        common.print_table(("k", "v"), [("a", 1)], title="another")
        rows = [{"k": "a|b", "v": "1.5 ms"}, {"k": None, "v": "x"}]
        common.print_records({"k": "k", "v": "v"}, rows, [{"k": "a|b", "v_ms": 1.5 / 7}])

    anything(["--format", "md"], standalone_mode=False)
    said = capsys.readouterr()
    assert said.out == "| k | v |\n| --- | --- |\n| a\\|b | 1.5 ms |\n|  | x |\n"
    assert said.err.splitlines() == ["before", "another", "k  v", "a  1"]
    anything(["--format", "csv", "-q"], standalone_mode=False)
    assert capsys.readouterr() == (f"k,v_ms\na|b,{1.5 / 7!r}\n", "")


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")))
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.fixed_dictionaries({"a, b": texts, "n": numbers, '"q"': st.integers()}), min_size=1))
def test_csv_keeps_every_text_and_every_digit(rows):
    found = list(csv.DictReader(io.StringIO(csv_text(rows), newline="")))
    assert [{"a, b": row["a, b"], "n": float(row["n"]), '"q"': int(row['"q"'])} for row in found] == rows


@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\\")), min_size=3, max_size=3), min_size=1))
def test_markdown_keeps_a_line_per_row_and_a_cell_per_column(rows):
    lines = pipes(rows).split("\n")
    assert [len(cells_of(line)) for line in lines] == [3] * len(rows)

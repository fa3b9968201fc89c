"""`-q` and `--format`: stdout holds the result and nothing else, as lines for a script or as a whole table."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import capacity_row, probe_record
from unit.bench.test_bench_run import launched_at_once
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.bench import bench_run
from dynbench.cli import health
from dynbench.cli.health import expect
from dynbench.cli.main import COMMANDS, load_command
from dynbench.cli.shipped import FOLDER
from dynbench.config.recipes import list_recipes
from dynbench.config.schema import Config, dump_config
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.experiment import training
from dynbench.experiment.training import TrainingResult
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
    monkeypatch.setattr(prober, "probe", lambda *_: record)
    monkeypatch.setattr("dynbench.analysis.figures.draw_figures", lambda *_: [])
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once({}))
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    checks = {"poor": (lambda _: expect(False, "x"), "y"), "fine": (lambda _: "x", "y")}
    monkeypatch.setattr(health, "CHECKS", checks)
    return run


QUIET: dict[str, list[str]] = {
    "train": ["{run.path}"],
    "probe": ["{made}"],
    SOLVE: ["{made}"],
    "solve --list": list(POLICIES),
    "data lengths -o {tmp}/x.csv": ["{tmp}/x.csv"],
    "runs ls": ["{run.id}"],
    "runs show a": ["{run.path}"],
    "runs rm a --yes": ["{run.path}"],
    "runs rm --failed --yes": [],
    "recipes ls": list(list_recipes()),
    "recipes cp quickstart {tmp}/x.yaml": ["{tmp}/x.yaml"],
    "plugins policies": list(POLICIES),
    "sync ls": list(STRATEGIES),
    "sync check ddp": ["ddp sgd 1e-17", "ddp adamw 2e-17"],
    "compress ls": list(COMPRESSORS),
    BENCH: ["{made}"],
    "bench ls": [*BENCHMARKS, "assignment"],
    "doctor": ["poor"],
    "guide": [path.stem for path in sorted(FOLDER.glob("*.md"))],
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


@pytest.mark.slow
@pytest.mark.parametrize("words", QUIET)
def test_quiet_prints_the_result_only(words, run, tmp_path, cli):
    said = cli(f"{words.format(tmp=tmp_path)} -q --results {run.path.parent}")
    made = next((path for path in run.path.parent.glob("20*") if path != run.path), None)
    assert (said.lines, said.err) == ([line.format(run=run, tmp=tmp_path, made=made) for line in QUIET[words]], "")


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")]


@pytest.mark.slow
@pytest.mark.parametrize("words", TABLES)
def test_stdout_is_the_table_alone(words, run, tmp_path, cli):
    names, key = TABLES[words]
    hows = ("table", "csv", "md", "csv -q")
    said = {how: cli(f"{words} --format {how} --results {tmp_path}/{how.split()[0]}") for how in hows}
    rows = list(csv.DictReader(io.StringIO(said["csv"].out)))
    assert [row[key] for row in rows] == names
    assert said["csv -q"].err == "" and len(said["csv -q"].lines) == len(said["csv"].lines)
    header, rule, *body = said["md"].lines
    assert len({len(cells_of(line)) for line in (header, rule, *body)}) == 1 and len(body) == len(rows)
    for form in ("csv", "md"):
        shown, beside = (set(re.findall(r"^\S+", text, re.M)) for text in (said["table"].out, said[form].err))
        assert shown & {"folder", "capacity", "run"} <= beside


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

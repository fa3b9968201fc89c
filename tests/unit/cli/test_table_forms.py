"""`--format`: stdout holds the result's table and nothing else, whole and in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from compared import compared
from hypothesis import given
from hypothesis import strategies as st
from unit.bench.test_bench_run import launched_at_once
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.bench import bench_run
from dynbench.cli import output
from dynbench.cli.main import COMMANDS, load_command, main
from dynbench.cli.options import Settings, common_options, table_option
from dynbench.config.digest import dump_config
from dynbench.config.recipes import list_recipes
from dynbench.config.schema import Config
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.experiment import training
from dynbench.experiment.cells import Cell
from dynbench.experiment.training import NextTraining
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES
from dynbench.probe import prober
from dynbench.runs import probe_record
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.store import RunStore
from dynbench.table_text import csv_text, pipes

SOLVE = ["solve", "lognormal", "--steps", "1", "--world-size", "2", "--policy", "static,partition", "--no-figures"]
SAME = ["--arm", "a", "--arm", "b"]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")]


# ---- the two texts ----------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")))
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.fixed_dictionaries({"a, b": texts, "n": numbers, '"q"': st.integers()}), min_size=1))
def test_csv_keeps_every_text_and_every_digit(rows: list[dict[str, object]]) -> None:
    found = list(csv.DictReader(io.StringIO(csv_text(rows), newline="")))
    assert [{"a, b": row["a, b"], "n": float(row["n"]), '"q"': int(row['"q"'])} for row in found] == rows


@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\\")), min_size=3, max_size=3), min_size=1))
def test_markdown_keeps_a_line_per_row_and_a_cell_per_column(rows: list[list[str]]) -> None:
    lines = pipes(rows).split("\n")
    assert [len(cells_of(line)) for line in lines] == [3] * len(rows)


# ---- what stdout holds ------------------------------------------------------------------------------------------


@dataclass
class Said:
    out: str
    err: str


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A probe of one rank that found a limit at one length and none at the other; a benchmark without a launch."""
    run = RunStore(tmp_path / "probes").create("probe", "probe")
    write_text(run.config_file, dump_config(Config()))
    capacity = [
        SimpleNamespace(
            rank=0, length=32, max_batch=123456, tested_ok=123456, tested_fail=130000, peak_mem_mb=1234.5678
        ),
        SimpleNamespace(rank=0, length=64, max_batch=9, tested_ok=9, tested_fail=None, peak_mem_mb=None),
    ]
    record = SimpleNamespace(
        capacity=capacity, device="cpu", precision="fp32", memory_limit_mb=2000.0, memory_model=None, soak=None,
        cost_model=None, predicted_speedup={}, speeds=[1.0], assumes=None, server_mb=None,
    )  # fmt: skip
    monkeypatch.setattr(prober, "run_probe", lambda *_, **__: run)
    monkeypatch.setattr(probe_record, "read_probe", lambda _: record)
    fits = NextTraining(64, 110, None, 64, split_fits=True)
    monkeypatch.setattr(training, "next_training", lambda *_: fits)
    monkeypatch.setattr("dynbench.analysis.figures.draw_figures", lambda *_: [])
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once({}))
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    yield


TABLES = {
    "solve": (SOLVE, ["static", "partition"], "policy"),
    "solve --list": (["solve", "--list"], list(POLICIES), "name"),
    "plugins": (["plugins", "datasets"], list(DATASETS), "name"),
    "sync ls": (["sync", "ls"], list(STRATEGIES), "name"),
    "sync check": (["sync", "check", "flat"], ["flat", "flat"], "strategy"),
    "compress ls": (["compress", "ls"], list(COMPRESSORS), "name"),
    "recipes ls": (["recipes", "ls"], list(list_recipes()), "name"),
    "probe": (["probe"], ["32", "64"], "length_tokens"),
    "bench": (
        ["bench", "collectives", "--set", "backend=gloo", "--set", "operations=all_reduce", "--set", "sizes_mib=1,10"],
        ["1048576", "10485760"],
        "size",
    ),
}
ELSEWHERE = {"analyze", "compare", "runs"}
"""Over made-up rows, in tests/unit/experiment/test_compare.py; a sweep below; runs in test_runs_groups.py."""


def test_every_command_with_a_table_is_tried() -> None:
    import click

    def takes(command: click.Command) -> bool:
        found = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        return any(
            "--format" in each.opts and "csv" in getattr(each.type, "choices", ()) for c in found for each in c.params
        )

    asked = {name for name in COMMANDS if takes(load_command(name))}
    assert asked == {name.partition(" ")[0] for name in TABLES} | ELSEWHERE


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("case", TABLES)
def test_stdout_is_the_table_alone(
    case: str, quiet: bool, tmp_path: Path, probed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words, names, key = TABLES[case]
    said = {}
    for form in ("table", "csv", "md"):
        quietly = ["-q"] if quiet and form != "table" else []
        assert main([*words, "--format", form, "--results", str(tmp_path / form), *quietly]) == 0
        said[form] = Said(*capsys.readouterr())
    rows = rows_of(said["csv"].out)

    assert [row[key] for row in rows] == names
    header, rule, *body = said["md"].out.splitlines()
    assert {len(cells_of(line)) for line in (header, rule, *body)} == {len(cells_of(header))}
    assert set(rule) <= set("|-: ") and len(body) == len(rows)
    told = [line for line in said["table"].out.splitlines() if line.startswith(("Results", "capacity on", "run "))]
    for form in ("csv", "md"):
        assert "\x1b" not in said[form].out
        opened = [line.split()[0] for line in said[form].err.splitlines() if line]
        assert all((line.split()[0] in opened) != quiet for line in told)
        if quiet:
            assert said[form].err == ""


@pytest.mark.parametrize("form", ["csv", "md"])
@pytest.mark.parametrize("words", [["solve", "--list"], ["recipes", "ls"], ["compare", *SAME], ["analyze", "x"]])
def test_json_and_a_table_are_not_both_on_stdout(
    words: list[str], form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*words, "--json", "--format", form, "--results", str(tmp_path)]) == 2
    assert f"--json and --format {form} both say what stdout holds" in capsys.readouterr().err


def test_a_command_says_the_rest_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    @click.command()
    @table_option
    @common_options
    def command(settings: Settings) -> None:
        output.print_line("before")
        output.print_table(("k", "v"), [("a", 1)], title="another")
        output.print_result(("k", "v"), [("a|b", "1.5 ms"), (None, "x")], [{"k": "a|b", "v_ms": 1.5 / 7}])

    command(["--format", "md"], standalone_mode=False)
    said = capsys.readouterr()
    assert said.out == "| k | v |\n| --- | --- |\n| a\\|b | 1.5 ms |\n|  | x |\n"
    assert said.err.splitlines() == ["before", "another", "k  v", "a  1"]
    command(["--format", "csv", "-q"], standalone_mode=False)
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"k,v_ms\na|b,{1.5 / 7!r}\n", "")


@pytest.mark.parametrize("form", ["table", "csv", "md"])
def test_a_sweep_has_a_line_per_comparison_and_arm(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dynbench.cli.compare_plan import show_cells

    store = RunStore(tmp_path)
    measured = {"verdict": "FASTER", "level": "step", "speedup": 1.2512345678, "ci95": [1.2, 1.3]}
    found = [compared(candidate="part", **measured)]
    found.append(compared(candidate="w8", **{**measured, "ci95": None, "speedup": 1 / 3}))
    cells = []
    for batch in (8, 64):
        folder = store.create("compare", "cell")
        runs = [{"id": "a", "summary": {"launcher": "torchrun"}}]
        content = {"runs": runs, "arms": [{"name": "s", "runs": ["a"]}], "comparisons": []}
        write_json(folder.path / "comparison.json", content)
        cells.append(Cell({"train.global_batch": batch, "schedule.capacity": [6, 5]}, folder.id))
    with output.stdout_holds(form, tells=True):
        show_cells(
            SimpleNamespace(run=store.create("compare", "all"), cells=cells, comparisons=[found, found], figures=[])
        )

    said = Said(*capsys.readouterr())
    if form == "table":
        return
    assert f"comparison  {store.root / cells[1].comparison}" in said.err
    if form == "md":
        assert len(said.out.splitlines()) == 6 and "| 1.251 |" in said.out
        return
    rows = rows_of(said.out)
    assert [(row["train.global_batch"], row["arm"]) for row in rows] == [
        ("8", "part"), ("8", "w8"), ("64", "part"), ("64", "w8"),
    ]  # fmt: skip
    assert [rows[1][key] for key in ("speedup", "interval_low", "interval_high", "ranks")] == [
        repr(1 / 3),
        "",
        "",
        "real",
    ]
    assert (rows[0]["schedule.capacity"], rows[2]["comparison"]) == ("[6, 5]", cells[1].comparison)

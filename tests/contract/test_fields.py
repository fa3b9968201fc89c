"""What is written or printed is documented, with its type; what is documented occurs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import polars as pl
import pytest
from fields_check import Check
from fields_tour import Tour, take_tour, written

from dynbench.cli.main import COMMANDS, GROUPS, load_command
from dynbench.fields.documents import TYPES, Document, anchor, documents, page

pytestmark = pytest.mark.xdist_group("fields")
"""One worker takes the tour."""
ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
ADD = "to be declared, or lines to add:\n"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    return take_tour(tmp_path_factory.mktemp("tour"))


def checked_files(root: Path, check: Check) -> Check:
    for name, path in written(root):
        if name not in documents():
            check.problems[f"dynbench/fields/: add a document for {name}  ({path})"] = None
        elif path.suffix == ".csv":
            check.csv(documents()[name], path)
        elif path.suffix == ".parquet":
            check.columns(documents()[name], pl.read_parquet_schema(path), str(path))
        else:
            check.json(documents()[name], json.loads(path.read_text(encoding="utf-8")), str(path))
    return check


def checked_output(tour: Tour, check: Check) -> Check:
    for name, value in tour.printed:
        check.json(documents()[name], value, name)
    return check


def said(check: Check) -> str:
    return ADD + "\n".join(check.problems)


@pytest.mark.slow
def test_what_the_commands_print_is_documented(tour: Tour) -> None:
    check = checked_output(tour, Check())
    assert not check.problems, said(check)


@pytest.mark.slow
def test_what_the_commands_write_is_documented(tour: Tour) -> None:
    check = checked_files(tour.root, Check())
    assert not check.problems, said(check)


def test_the_reference_results_are_documented() -> None:
    check = checked_files(REFERENCE, Check())
    assert not check.problems, said(check)


@pytest.mark.slow
def test_every_command_is_on_the_tour(tour: Tour) -> None:
    printed = {str(value["command"]) for _, value in tour.printed}
    commands = {
        f"{name} {sub}".strip()
        for name in COMMANDS
        for sub in (load_command(name).commands if name in GROUPS else [""])
    }
    assert printed == commands, "tests/fields_tour.py: run every command"


def never_seen(known: Iterable[Document], check: Check) -> list[str]:
    return [
        f"{document.place}: {field.path} occurs nowhere: remove it, or say `optional` and when it is there"
        for document in known
        for field in document.fields
        if not field.optional and (document.name, field.path) not in check.used
    ]


@pytest.mark.slow
def test_what_is_documented_occurs_or_is_optional(tour: Tour) -> None:
    check = checked_files(REFERENCE, checked_files(tour.root, checked_output(tour, Check())))
    assert never_seen(documents().values(), check) == []


@pytest.mark.slow
def test_a_field_that_never_occurs_is_reported(tour: Tour) -> None:
    document, check = documents()["report --json"], checked_output(tour, Check())
    field = document.fields[-1]
    grown = [replace(document, fields=(*document.fields, planted)) for planted in (
        replace(field, path="never"), replace(field, path="seldom", optional=True)
    )]  # fmt: skip
    assert never_seen([document], check) == []
    assert [line.partition(": ")[2].split()[0] for line in never_seen(grown, check)] == ["never"]


def test_links_of_the_page_lead_somewhere() -> None:
    headings = {anchor(line.removeprefix("## ")) for line in page().splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\]\(#([^)]+)\)", page()))
    assert links and links <= headings


def test_types_and_meanings() -> None:
    known = {*TYPES, *(name for name in documents() if " " not in name)}
    for document in documents().values():
        for field in document.fields:
            kind = field.kind.removeprefix("array of ")
            assert kind in known, f"{document.place}: {field.path}: no type {kind!r}"
            assert field.meaning, f"{document.place}: {field.path} says nothing: give it a docstring or a line"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("unheard_of", 1.5, "commands.yaml, train --json: add `unheard_of: number, UNIT - MEANING`"),
        ("summary.step_time_ms.p99", 1.5, "training.yaml, summary: add `step_time_ms.p99: number, UNIT - MEANING`"),
        ("run.id", 7, "run_reference: id is string, and 7 stands in"),
        ("summary.steps", None, "summary: steps is integer, and null stands in"),
        ("figures", [None], "figures[] is array of string, and None stands in"),
    ],
)
def test_a_planted_fault_is_reported_with_the_line_to_add(tour: Tour, path: str, value: object, line: str) -> None:
    printed = json.loads(json.dumps(next(each for document, each in tour.printed if document == "train --json")))
    *parents, last = path.split(".")
    reduce(lambda within, key: within[key], parents, printed)[last] = value
    check = Check()
    check.json(documents()["train --json"], printed, "here")
    assert [problem for problem in check.problems if line in problem], said(check)


@pytest.mark.slow
def test_a_planted_column_is_reported(tour: Tour, tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    path.write_text("step,loss,samples,extra\n1.5,2.0,8,x\n", encoding="utf-8")
    check = Check()
    check.csv(documents()["eval.csv"], path)
    assert [problem.partition(": ")[2][:40] for problem in check.problems] == [
        "column step is integer, and '1.5' stands",
        "add `extra: string, UNIT - MEANING`  (in",
    ]

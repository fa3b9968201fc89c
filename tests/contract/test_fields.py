"""What is written or printed is documented, with its type; what is documented occurs."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path

import polars as pl
import pytest
from fields_check import Check
from fields_tour import Tour, take_tour, written

from dynbench.cli.main import COMMANDS, GROUPS, load_command
from dynbench.fields.documents import TYPES, anchor, documents, page

pytestmark = pytest.mark.xdist_group("fields")
"""One worker takes the tour."""
ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    return take_tour(tmp_path_factory.mktemp("tour"))


def checked_files(root: Path) -> Check:
    check = Check()
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


def checked_output(tour: Tour) -> Check:
    check = Check()
    for name, value in tour.printed:
        check.json(documents()[name], value, name)
    return check


@pytest.fixture(scope="module")
def checks(tour: Tour) -> dict[str, Check]:
    """Of what the commands print, of what they write, and of the reference results."""
    return {"print": checked_output(tour), "write": checked_files(tour.root), "reference": checked_files(REFERENCE)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["print", "write", "reference"])
def test_what_there_is_is_documented(checks: dict[str, Check], what: str) -> None:
    assert [*checks[what].problems] == [], "to be declared, or lines to add"


@pytest.mark.slow
def test_every_command_is_on_the_tour(tour: Tour) -> None:
    printed = {str(value["command"]) for _, value in tour.printed}
    commands = {
        f"{name} {sub}".strip()
        for name in COMMANDS
        for sub in (load_command(name).commands if name in GROUPS else [""])
    }
    assert printed == commands, "tests/fields_tour.py: run every command"


@pytest.mark.slow
def test_what_is_documented_occurs_or_is_optional(checks: dict[str, Check]) -> None:
    used = set().union(*(check.used for check in checks.values()))
    assert [
        f"{document.place}: {field.path} occurs nowhere: remove it, or say `optional` and when it is there"
        for document in documents().values()
        for field in document.fields
        if not field.optional and (document.name, field.path) not in used
    ] == []


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
    ("path", "value"), [("unheard_of", 1.5), ("run.id", 7), ("summary.steps", None), ("figures", [None])]
)
def test_a_planted_fault_is_reported(tour: Tour, path: str, value: object) -> None:
    printed = json.loads(json.dumps(next(each for document, each in tour.printed if document == "train --json")))
    *parents, last = path.split(".")
    reduce(lambda within, key: within[key], parents, printed)[last] = value
    check = Check()
    check.json(documents()["train --json"], printed, "here")
    assert any(last in problem for problem in check.problems)


@pytest.mark.slow
def test_a_planted_column_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    path.write_text("step,loss,samples,extra\n1.5,2.0,8,x\n", encoding="utf-8")
    check = Check()
    check.csv(documents()["eval.csv"], path)
    first, second = check.problems
    assert "step" in first and "extra" in second

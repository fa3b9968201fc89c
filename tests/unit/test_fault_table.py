"""Every declared fault has its tests, in every command or with a reason, and the page tells of each what was seen."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from fault_table import COMMANDS, HERE, NOT_YET, RUN_BY, SECTION, Keeper, declared, left, rows, table, write
from page import section


def test_every_command_has_a_test_or_a_reason() -> None:
    for each in declared():
        if "analyze, report, runs" not in each.tests:
            assert set(each.tests) | set(each.elsewhere) == set(COMMANDS), each.fault
        assert not set(each.tests) & set(each.elsewhere) and all(each.elsewhere.values()), each.fault


def test_every_test_is_there() -> None:
    functions: dict[str, set[str]] = {}
    for _, _, test in rows():
        file, _, name = test.partition("::")
        if file not in functions:
            tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
            functions[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in functions[file], test


def test_the_page_tells_what_is_declared() -> None:
    found = table(section(SECTION))
    assert [(fault, command, test.strip("`")) for fault, command, _, test, _ in found] == list(rows())
    assert all(seen != NOT_YET and by in RUN_BY.values() for _, _, seen, _, by in found)


def test_make_test_runs_a_test_of_every_fault() -> None:
    found = table(section(SECTION))
    for each in declared():
        assert any(row[0] == each.fault and row[4] != RUN_BY["matrix"] for row in found), each.fault


def test_what_is_not_green_is_not_written_and_what_did_not_run_or_was_skipped_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, out = tmp_path / "kept.jsonl", tmp_path / "README.md"
    monkeypatch.setattr("page.PAGE", out)
    keeper = Keeper(kept)
    first, second, *others = dict.fromkeys(test for _, _, test in rows())
    assert left(kept) == [first, second, *others]
    report(keeper, f"tests/{first}@a_group", "failed")
    assert first in (write(kept) or "") and not out.exists()
    report(keeper, f"tests/{second}@a_group", "passed")
    assert left(kept) == [first, *others]
    report(keeper, f"tests/{first}@a_group", "passed")
    assert write(kept) is None and r"a \| b" in out.read_text(encoding="utf-8")
    kept.unlink()
    report(keeper, f"tests/{first}", "skipped")
    report(keeper, f"tests/{second}", "passed")
    assert write(kept) is None
    found = table(section(SECTION))
    assert [seen for _, _, seen, test, _ in found if test in (f"`{first}`", f"`{second}`")][:2] == ["a | b"] * 2
    assert NOT_YET in {row[2] for row in found} and len(found) == len(list(rows()))


def report(keeper: Keeper, test: str, outcome: str) -> None:
    for when in ("setup", "call", "teardown"):
        failed = when == "call" and outcome == "failed"
        said = SimpleNamespace(
            nodeid=test, when=when, failed=failed, skipped=False, keywords={}, outcome=outcome, user_properties=[]
        )
        said.user_properties = [("seen", "a | b")]
        keeper.pytest_runtest_logreport(said)

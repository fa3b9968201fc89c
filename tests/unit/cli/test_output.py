from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator

import numpy as np
import pytest

from dynbench.cli import output


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("dynbench")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_json_is_one_line_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": math.nan, "b": [np.float64("inf"), 1.5], "c": "批"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": "批"}
    assert out.isascii()


def test_tables_go_to_stdout_unwrapped_and_unstyled(capsys: pytest.CaptureFixture[str]) -> None:
    path = "results/" + "x" * 120
    output.print_table(("name", "n", "path"), [("[red]a[/red]", 1, path), ("b", 100, None)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("[red]a[/red]")
    assert lines[1].endswith(path)
    assert lines[1].index("1") == lines[2].index("100") + 2
    assert all(line == line.rstrip() for line in lines)


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_line("[x] " + "y" * 500)
    assert capsys.readouterr().out == "[x] " + "y" * 500 + "\n"


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_pairs("title", {"a": 1, "long": "x"})
    assert capsys.readouterr().out == "title\n  a     1\n  long  x\n"


@pytest.mark.parametrize(
    ("verbosity", "debug", "seen"),
    [
        (-1, False, ["error: e"]),
        (0, False, ["i", "warning: w", "error: e"]),
        (1, False, ["debug: d", "i", "warning: w", "error: e"]),
        (0, True, ["debug: d", "i", "warning: w", "error: e", "debug: library"]),
    ],
)
def test_diagnostics_go_to_stderr_by_level(
    verbosity: int, debug: bool, seen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output.set_up_logging(verbosity, debug)
    output.set_up_logging(verbosity, debug)
    log = logging.getLogger("dynbench.something")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    logging.getLogger("library").debug("library")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == seen


def test_libraries_speak_only_when_they_warn(capsys: pytest.CaptureFixture[str]) -> None:
    output.set_up_logging(1)
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("beware")
    assert capsys.readouterr().err == "warning: beware\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": None, "c": {"d": 2.0}}, "a 1, c (d 2)"),
        ({}, "none"),
        ([1, 2.5], "1, 2.5"),
        (None, "null"),
        (1 / 3, "0.333333"),
    ],
)
def test_brief(value: object, text: str) -> None:
    assert output.brief(value) == text


def test_a_narrow_terminal_breaks_no_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output.stdout, "_width", 10)
    output.print_table(("word", "other"), [("unbreakable", "indivisible")])
    assert "unbreakable  indivisible" in capsys.readouterr().out

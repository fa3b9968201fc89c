from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from dynbench.cli import console, output


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
    monkeypatch.setattr(console.stdout, "_width", 10)
    output.print_table(("word", "other"), [("unbreakable", "indivisible")])
    assert "unbreakable  indivisible" in capsys.readouterr().out


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(console, "stdout", console._Console(width=width, force_terminal=True, color_system=None))


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_a_narrow_terminal_gets_every_cell_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    on_a_terminal(monkeypatch, width)
    columns = ["name", "G", *(f"in {'long ' * (i % 3)}{chr(97 + i)}" for i in range(12))]
    rows = [[f"run-{r}", str(r), *(f"{r}{i:02}.5 ms {'and so on' * (i % 2)}" for i in range(12))] for r in range(3)]
    output.print_table(columns, rows, keys=2, bold=[1])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(cell.strip()) == 1 for cell in (*columns[2:], *(cell for row in rows for cell in row[2:])))
    tables = text.split("\n\n")
    assert (len(tables) == 1) == (width == 300)
    for table in tables:
        header, *body = table.splitlines()
        assert header.split()[:2] == columns[:2] and [line.split()[:2] for line in body] == [row[:2] for row in rows]


def test_short_cells_of_several_words_stay_whole_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 40)
    cells = ["20261120-145312-partition-k3f9", "2026-11-20 14:53", "3 min 20 s"]
    output.print_table(("id", "created", "duration"), [cells])
    out = capsys.readouterr().out
    assert all(out.count(cell) == 1 for cell in cells[1:])
    assert "…" not in out


def test_sentences_are_wrapped_before_columns_go_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 60)
    sentence = "a sentence of many words " * 6
    output.print_table(("check", "seen", "next"), [("load", sentence, sentence)])
    out = capsys.readouterr().out
    assert out.count("check") == 1 and max(map(len, out.splitlines())) <= 60


def test_nobody_reading_stderr_ends_nothing() -> None:
    code = "from dynbench.cli.console import stderr\nfor _ in range(3): stderr.print('x' * 100_000)\nprint('went on')"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "went on\n")


@pytest.mark.parametrize("turn", [1, 2])
def test_what_a_quiet_command_set_ends_with_its_test(turn: int, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dynbench.of_a_test").warning("heard")
    assert "heard" in caplog.text, turn
    output.set_up_logging(-1)
    logging.getLogger("dynbench.of_a_test").warning("quiet")
    assert "quiet" not in caplog.text


EVIL = "\x1b[31m[/red]\u202e\r\x07"
SHOWN = r"\x1b[31m[/red]\u202e\r\x07"


def test_names_set_no_colour_and_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_line(EVIL)
    output.print_pairs(EVIL, {EVIL: EVIL})
    output.print_table((EVIL,), [(EVIL,)], EVIL)
    output.set_up_logging(0)
    output.show_warnings([EVIL])
    console.stderr.print(EVIL)
    out, err = capsys.readouterr()
    assert out.count(SHOWN) == 7 and err.count(SHOWN) == 2
    assert not {*EVIL} & {*out, *err} - {*SHOWN}


def test_a_spinner_and_a_bar_show_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = console._Console(file=io.StringIO(), force_terminal=True, width=200, markup=False)
    monkeypatch.setattr(console, "stderr", terminal)
    with console.working(True, "[/red]") as show:
        show(EVIL)
    with console.progress_bar("[/red]") as update:
        update(description="[/red]", facts="[/blue]")
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "[/red]" in shown and "[/blue]" in shown and SHOWN in shown

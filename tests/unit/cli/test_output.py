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

from dynbench.cli import common, console
from dynbench.table_text import Table


def test_json_is_one_line_without_nan(capsys):
    common.print_json({"a": math.nan, "b": [np.float64("inf"), 1.5], "c": "批"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": "批"}
    assert out.isascii()


@pytest.mark.parametrize(
    ("verbosity", "debug", "seen"),
    [
        (-1, False, ["error: e"]),
        (0, False, ["i", "warning: w", "error: e"]),
        (1, False, ["debug: d", "i", "warning: w", "error: e"]),
        (0, True, ["debug: d", "i", "warning: w", "error: e", "debug: library"]),
    ],
)
def test_diagnostics_go_to_stderr_by_level(verbosity, debug, seen, capsys):
    common.set_up_logging(verbosity, debug)
    common.set_up_logging(verbosity, debug)
    log = logging.getLogger("dynbench.something")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    logging.getLogger("library").debug("library")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == seen


@pytest.mark.parametrize("width", [40, 120, 300])
def test_a_narrow_terminal_gets_every_cell_whole(monkeypatch, capsys, width):
    terminal = console._Console(width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "stdout", terminal)
    columns = ["name", "G", *(f"in {'long ' * (i % 3)}{chr(97 + i)}" for i in range(12))]
    rows = [[f"run-{r}", str(r), *(f"{r}{i:02}.5 ms {'and so on' * (i % 2)}" for i in range(12))] for r in range(3)]
    common.show_table(Table(columns, rows, keys=2), [1])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(cell.strip()) == 1 for cell in (*columns[2:], *(cell for row in rows for cell in row[2:])))
    tables = text.split("\n\n")
    assert (len(tables) == 1) == (width == 300)
    for table in tables:
        header, *body = table.splitlines()
        assert header.split()[:2] == columns[:2] and [line.split()[:2] for line in body] == [row[:2] for row in rows]


def test_nobody_reading_stderr_ends_nothing():
    code = "from dynbench.cli.console import stderr\nfor _ in range(3): stderr.print('x' * 100_000)\nprint('went on')"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "went on\n")


EVIL = "\x1b[31m[/red]\u202e\r\x07"
SHOWN = r"\x1b[31m[/red]\u202e\r\x07"


def test_names_set_no_colour_and_move_no_cursor(capsys):
    common.print_lines(EVIL)
    common.print_pairs(EVIL, {EVIL: EVIL})
    common.print_table((EVIL,), [(EVIL,)], EVIL)
    common.set_up_logging(0)
    common.show_warnings([EVIL])
    console.stderr.print(EVIL)
    out, err = capsys.readouterr()
    assert out.count(SHOWN) == 7 and err.count(SHOWN) == 2
    assert not {*EVIL} & {*out, *err} - {*SHOWN}


def test_a_spinner_and_a_bar_show_names_as_they_are(monkeypatch):
    terminal = console._Console(file=io.StringIO(), force_terminal=True, width=200, markup=False)
    monkeypatch.setattr(console, "stderr", terminal)
    with console.working(True, "[/red]") as show:
        show(EVIL)
    with console.display(True, "[/red]", ()) as display:
        display.on_stage("[/blue]")
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "[/red]" in shown and "[/blue]" in shown and SHOWN in shown

from __future__ import annotations

import io
import json
import logging
import math

import numpy as np
import pytest
from probes import probe_record

from dynbench.cli import common, console
from dynbench.cli.analyze import _tells_apart
from dynbench.cli.probe import show_probe
from dynbench.runs.probe_record import CapacityRow, Soak
from dynbench.table_text import Table


def test_json_is_one_line_without_nan(capsys):
    common.print_json({"a": math.nan, "b": [np.float64("inf"), 1.5], "c": "批"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": "批"}
    assert out.isascii()


@pytest.mark.parametrize(("verbosity", "debug", "unseen"), [(-1, False, 3), (0, False, 1), (1, False, 0), (0, True, 0)])
def test_diagnostics_go_to_stderr_by_level(verbosity, debug, unseen, capsys):
    common.set_up_logging(verbosity, debug)
    common.set_up_logging(verbosity, debug)
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("dynbench.something"), level)(level[0])
    logging.getLogger("library").debug("library")
    out, err = capsys.readouterr()
    ours = ["debug: d", "i", "warning: w", "error: e"][unseen:]
    assert (out, err.splitlines()) == ("", [*ours, *["debug: library"] * debug])


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


def test_tables_in_which_no_arm_differs_are_left_out():
    def shown(*rows: list[str]) -> bool:
        return _tells_apart(Table(["arm", "ms", "MB"], rows))

    assert shown(["a", "1", ""], ["b", "2", ""]) and shown(["a", "", ""])
    assert not shown(["a", "1", ""], ["b", "1", ""])


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


@pytest.mark.parametrize("shrunk", [0, 2])
def test_a_capacity_that_the_soak_of_a_probe_lowered_is_said(capsys, shrunk):
    row = CapacityRow(rank=0, length=64, max_batch=22, tested_ok=32, tested_fail=33, peak_mem_mb=560.0)
    lowered = row.model_copy(update={"length": 32, "max_batch": 57, "tested_ok": 64, "tested_fail": 64})
    memory = {"peak_mem_mb": 550.0, "reserved_mem_mb": 550.0, "allocator_retries": None}
    soak = Soak(steps=50, ok=True, shrunk=shrunk, global_batch=40 if shrunk else 64, **memory)
    show_probe(probe_record(memory_limit_mb=540.0, capacity=[lowered, row], soak=soak))
    shown = capsys.readouterr().out
    of_the_soak = ("in pieces", "at a global batch of 40, the largest that fits, passed", "a margin of 11%")
    assert [text in shown for text in of_the_soak] == [shrunk > 0] * 3
    assert "peak: resident memory" in shown and "rank 0, 64 tokens" not in shown

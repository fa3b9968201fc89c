"""The tables that people read."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from compared import compared
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from languages import english_words
from rich.cells import cell_len

from dynbench.analysis.measures import METRICS
from dynbench.analysis.questions import DEFAULT
from dynbench.analysis.table_specs import TABLES
from dynbench.analysis.tables import by_arm, overview
from dynbench.analysis.waste import PARTS
from dynbench.cli import common, console
from dynbench.plugins import STRATEGIES
from dynbench.report import LANGUAGES, load_template
from dynbench.table_text import MARKDOWN_WIDTH, Table, format_gain, format_value, signed

LONGEST = 32
"""Characters of an arm's name."""

latin = st.from_regex(rf"[a-z][a-z059_-]{{0,{LONGEST - 1}}}", fullmatch=True)
names = latin | st.text("批长度", min_size=1, max_size=LONGEST // 2)
arms = st.lists(names, min_size=2, max_size=9, unique=True)


def measured(names: list[str]) -> dict[str, dict[str, object]]:
    """Values of every metric, different for each arm and metric."""
    return {
        name: {metric.key: 0.0101 * (index + 1) + 0.001 * place for place, metric in enumerate(METRICS)}
        for index, name in enumerate(names)
    }


def gained(names: list[str]) -> dict[str, dict[str, float]]:
    return {
        name: {metric.key: 10.0 * index + place for place, metric in enumerate(METRICS) if metric.better}
        for index, name in enumerate(names[1:], 1)
    }


def tables_of(names: list[str]) -> list[Table]:
    facts = {"baseline": names[0], "recovered_share": 0.4, "bound_speedup": 1.9}
    found = [compared(candidate=name, **facts) for name in names[1:]]
    first = overview(measured(names), found, DEFAULT)
    return [first, *by_arm(measured(names), gained(names), METRICS)]


def every_value(names: list[str]) -> list[str]:
    values, gains = measured(names), gained(names)
    texts = [format_value(values[name][metric.key], metric.unit) for name in names for metric in METRICS]  # type: ignore[arg-type]  # numbers
    return texts + [format_gain(gain) for found in gains.values() for gain in found.values()]


@given(st.floats(-10, 10), st.integers(0, 4))
def test_what_rounds_to_nothing_has_no_sign(value: float, digits: int) -> None:
    text = signed(value, digits)
    assert (text[0] in "+-") == (float(text) != 0)
    assert abs(float(text) - value) <= 0.51 * 10**-digits


def blocks(text: str) -> Iterator[list[str]]:
    """The lines of each table, without its title."""
    for block in text.strip("\n").split("\n\n"):
        lines = block.splitlines()
        if not lines[0].startswith("**"):
            yield lines


def printed(tables: list[Table], width: int) -> str:
    said: list[str] = []
    shown = console._Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "stdout", shown)
        patch.setattr(common, "_print", said.append)
        common.print_results(tables, [])
    return "\n".join(said)


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate])
@given(arms, st.sampled_from([60, 80, 100, 140]))
def test_a_terminal_shows_every_arm_and_value_within_its_width(names: list[str], width: int) -> None:
    text = printed(tables_of(names), width)

    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text
    spaced = f" {' '.join(text.split())} "
    assert [value for value in every_value(names) if f" {value} " not in spaced] == []
    firsts = [line.split()[0] for line in text.splitlines() if line and line[0] != " "]
    assert {firsts.count(name) for name in names} == {text.count("\narm ") + text.startswith("arm ")}


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate])
@given(arms)
def test_markdown_shows_every_arm_and_value_in_lines_that_are_read_as_they_stand(names: list[str]) -> None:
    tables = tables_of(names)
    text = "\n\n".join(table.markdown() for table in tables)

    assert max(map(len, text.splitlines())) <= MARKDOWN_WIDTH
    cells = [cell.strip() for line in text.splitlines() for cell in line.split("|")]
    assert [value for value in every_value(names) if value not in cells] == []
    for header, rule, *rows in blocks(text):
        assert [row.split("|")[1].strip() for row in rows] == names
        assert {line.count("|") for line in (rule, *rows)} == {header.count("|")}
        assert header.split("|")[2].strip() != "gain"
    whole = "\n\n".join(table.markdown(whole=True) for table in tables)
    assert len(list(blocks(whole))) == len(tables)


def summary(s: float | None) -> dict[str, object]:
    waste = dict.fromkeys(PARTS, None if s is None else 0.05) | {"s": s}
    slowest = {"distinct": 2, "shares": [0.75, 0.25], "equal": 0.5}
    return {"waste": waste, "slowest_ranks": slowest, "world_size": 3, "workers": 2}


def test_a_launch_that_does_not_know_leaves_the_arm_unknown() -> None:
    """A mean over fewer launches stood beside means over all of them, under one heading."""
    table = TABLES["waste"].table({"static": [summary(1.5), summary(None)], "other": [summary(2.0)]})
    assert not any(table.rows[0][1:9]) and table.rows[1][1] == "2.00"
    assert table.rows[0][9], "whom steps wait for needs no fit"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_column_of_a_strategy_has_a_heading(language: str) -> None:
    names = {
        column.name: 1.0
        for entry in STRATEGIES.values()
        if not isinstance(entry.target, type)
        for column in entry.load().columns
        if column.unit == "ms"
    }
    sides = {"workers": {"comm_ms": 1.0, **names}, "servers": {"optimizer_ms": 1.0}}
    table = TABLES["timed"].table({"一": [{"timed_ms": sides}]}, load_template(language).label)
    assert table is not None
    assert len(set(table.columns)) == 3 + len(names)
    if language != "en":
        assert english_words(table.markdown(whole=True), ("rank",)) == []

"""Many arms at a glance: every arm and every value in Markdown and on terminals of any width, in every verdict."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping

import pytest
from compared import compared
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dynbench.analysis.comparison_tables import by_arm, of_metric, overview
from dynbench.analysis.measure import Metric
from dynbench.analysis.measures import FAMILIES, METRICS, by_family
from dynbench.analysis.question import Question
from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.cli import console, output
from dynbench.table_text import MARKDOWN_WIDTH, Table, format_gain, format_interval, format_value, in_english

LONGEST = 32
"""Characters of an arm's name."""

latin = st.from_regex(rf"[a-z][a-z059_-]{{0,{LONGEST - 1}}}", fullmatch=True)
names = latin | st.text("批长度", min_size=1, max_size=LONGEST // 2)
arms = st.lists(names, min_size=2, max_size=9, unique=True)


def heading_of(metric: Metric) -> str:
    return of_metric(metric).title("overview", in_english)


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


def found_of(names: list[str], **facts: object) -> list[ComparisonRecord]:
    return [compared(candidate=name, baseline=names[0], **facts) for name in names[1:]]


def tables_of(names: list[str], question: Question = DEFAULT) -> list[Table]:
    first = overview(measured(names), found_of(names, recovered_share=0.4, bound_speedup=1.9), question)
    return [first, *by_arm(measured(names), gained(names), METRICS)]


def every_value(names: list[str]) -> list[str]:
    values, gains = measured(names), gained(names)
    texts = [format_value(values[name][metric.key], metric.unit) for name in names for metric in METRICS]  # type: ignore[arg-type]  # numbers
    return texts + [format_gain(gain) for found in gains.values() for gain in found.values()]


def blocks(text: str) -> Iterator[list[str]]:
    """The lines of each table, without its title."""
    for block in text.strip("\n").split("\n\n"):
        lines = block.splitlines()
        if not lines[0].startswith("**"):
            yield lines


def printed(tables: list[Table], width: int, terminal: bool = True) -> str:
    shown = console._Console(width=width, force_terminal=terminal, color_system=None, file=io.StringIO())
    before, said = console.stdout, []
    console.stdout, echo = shown, output._print
    output._print = said.append
    try:
        output.print_results(tables, [])
    finally:
        console.stdout, output._print = before, echo
    return "\n".join(said)


def wide(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate])
@given(arms, st.sampled_from([60, 80, 100, 140]))
def test_a_terminal_shows_every_arm_and_value_within_its_width(names: list[str], width: int) -> None:
    text = printed(tables_of(names), width)

    assert max(map(wide, text.splitlines())) <= width
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


@pytest.mark.slow
def test_a_gain_stays_beside_its_value() -> None:
    for width in range(60, 140, 7):
        text = printed(by_arm(measured(["a", "b"]), gained(["a", "b"]), METRICS), width)
        assert [block for block in text.split("\n\n") if re.search(r"^arm +gain", block, re.M)] == []


def test_a_pipe_gets_each_family_in_one_table() -> None:
    tables = tables_of(["static", "partition", "window8", "prefix"])
    assert printed(tables, console.PIPE_WIDTH, terminal=False).count("\n\n") == len(tables) - 1


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_columns_are_those_of_the_question(name: str) -> None:
    question, names = QUESTIONS[name], ["a", "b", "c", "d"]
    facts = {"efficiency": 0.75, "loss_drift": 0.013} | ({"recovered_share": 0.4} if question.plans else {})
    columns = overview(measured(names), found_of(names, **facts), question).columns

    metrics = {metric.key: heading_of(metric) for metric in METRICS}
    assert [metrics[key] for key in question.overview] == list(columns[-len(question.overview) :])
    assert ("loss drift" in columns) == (question.loss_drift is not None)
    assert ("recovered" in columns) == question.plans
    assert len(set(columns)) == len(columns)


def row_of(table: Table, name: str) -> Mapping[str, str]:
    return next(dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == name)


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("aa", [False, True])
def test_every_verdict_has_its_row(verdict: Verdict, aa: bool) -> None:
    names = ["static", "one", "two", "three"]
    ends = None if verdict is Verdict.ESTIMATE else [1.2, 1.4]
    found = [compared(candidate="one", verdict=verdict, ci95=ends, aa=aa), *found_of(["static", "two", "three"])]
    table = overview(measured(names), found, DEFAULT, stored=["static"])

    assert [row[0] for row in table.rows] == names
    shown = row_of(table, "one")
    assert shown["verdict"] == (f"{verdict} (alike)" if aa else verdict)
    assert (shown["speed-up"], shown["95 % interval"]) == ("1.300", "[1.200, 1.400]" if ends else "")
    baseline = row_of(table, "static")
    assert (baseline["verdict"], baseline["speed-up"], baseline["level"]) == ("baseline (stored)", "", "")


def test_columns_that_nothing_fills_are_left_out() -> None:
    names = ["a", "b", "c", "d"]
    values = {name: {"padding_ratio": 1.5} for name in names}
    table = overview(values, found_of(names, ci95=None, verdict="ESTIMATE"), DEFAULT)

    assert table.columns == ["arm", "verdict", "level", "speed-up", "padding"]
    assert [family.columns for family in by_arm(values, {}, METRICS)] == [["arm", "padding"]]


def test_a_value_that_one_arm_lacks_is_empty_there() -> None:
    values: dict[str, dict[str, object]] = {"a": {"eval.loss": 0.5}, "b": {}}
    (table,) = by_arm(values, {}, METRICS)
    assert [list(row) for row in table.rows] == [["a", "0.500"], ["b", ""]]


def test_every_metric_has_a_heading_of_its_own() -> None:
    """Without one a column is as wide as the metric's title."""
    assert [metric.key for metric in METRICS if not metric.heading] == []


def test_every_metric_stands_in_one_family() -> None:
    listed = [key for family in FAMILIES.values() for key in family]
    assert len(set(listed)) == len(listed) and {*listed} <= {metric.key for metric in METRICS}
    assert sum(map(len, by_family(METRICS).values())) == len(METRICS)


def test_intervals_are_numbers_and_stand_to_the_right() -> None:
    rows = [("a", "", format_interval(None)), ("b", "1.3", format_interval((1.2, 1.4)))]
    assert Table(("arm", "n", "interval"), rows).markdown().splitlines()[1] == "| --- | ---: | ---: |"


@pytest.mark.parametrize(
    ("ends", "cell"),
    [
        ((0.9, 1.2345), "[0.900, 1.234]"),
        ((0.0, 9999.0), "[0.000, 9999.000]"),
        ((0.00002, 1.97e27), "[2e-05, 2e+27]"),
        ((-182.9, 492.5), "[-182.900, 492.500]"),
    ],
)
def test_an_interval_that_says_nothing_is_no_longer_for_it(ends: tuple[float, float], cell: str) -> None:
    assert format_interval(ends) == cell

"""The engine of tables: what a cell shows, which columns and tables there are, in a language."""

from __future__ import annotations

import pytest

from dynbench.analysis.measure import mean_over
from dynbench.analysis.tables import Column, Spec, columns

NAMED = (Column("arm", "arm"), *columns("ms", wait_ms="waiting"), *columns("%", share="share"))
ROWS = [{"arm": "a", "wait_ms": 12.5, "share": None}, {"arm": "b"}]


def spec(**more: object) -> Spec:
    return Spec("own", "a title", lambda rows, _: rows, NAMED, **more)  # type: ignore[arg-type]  # any of its fields


def test_cells_are_by_unit_and_what_a_row_lacks_is_empty() -> None:
    table = spec().table(ROWS)
    assert table is not None
    assert (table.title, table.columns) == ("a title", ["arm", "waiting\n(ms)", "share"])
    assert table.rows == [["a", "12.500", ""], ["b", "", ""]]


def test_a_compact_table_has_no_empty_column() -> None:
    table = spec(compact=True).table(ROWS)
    assert table is not None and table.rows == [["a", "12.500"], ["b", ""]]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("rows", [[], [{"arm": "a"}], [{"arm": "a", "share": None}]])
def test_nothing_beside_the_keys_is_no_table(rows: list[dict[str, object]], compact: bool) -> None:
    assert spec(compact=compact).table(rows) is None


def test_texts_are_those_of_the_language() -> None:
    texts = {"own.title": "T", "own.wait_ms": "W", "units.ms": "u", "kinds.not_told": "N", "other": "O of …"}
    shown = (Column("kind", "kind", text="other", of="x", words="kinds"), *columns("ms", wait_ms="waiting"))
    rows = [{"kind": "not told", "wait_ms": 1.0}, {"kind": "new", "wait_ms": (1.0, 2.0)}]
    table = Spec("own", "a title", lambda rows, _: rows, shown).table(rows, lambda key, text: texts.get(key, text))
    assert table is not None
    assert (table.title, table.columns) == ("T", ["O of x", "W\n(u)"])
    assert table.rows == [["N", "1.000"], ["new", "[1.000, 2.000]"]]


def test_a_mean_is_over_all_launches_or_of_those_that_know() -> None:
    launches = [{"waste": {"s": 1.0}}, {"waste": {"s": 3.0}}, {}]
    assert mean_over(launches[:2], "waste.s") == pytest.approx(1.5), "harmonic, as shares have means of their own"
    assert mean_over(launches, "waste.s") is None
    assert mean_over(launches, "waste.s", of_known=True) == pytest.approx(1.5)
    assert mean_over([], "waste.s", of_known=True) is None

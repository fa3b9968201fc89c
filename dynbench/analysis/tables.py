"""The one engine of tables for people: columns over rows, in a language.

A table is data: a `Spec` of rows and columns. An analysis has its own in `table_specs`, reports have theirs in
`experiment.report_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import polars as pl

from dynbench.analysis.measure import Metric, lookup
from dynbench.analysis.measures import METRICS
from dynbench.table_text import MARKDOWN_WIDTH, Label, Table, format_interval, format_value, in_english

Row = Mapping[str, object]
"""Key of a column to a number, text, an interval, or None."""
Rows = pl.DataFrame

_TEXT_COLUMNS = ("metric", "title", "unit")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: of its value in a row, and of its heading among the texts of the table.
        heading: in English.
        unit: of numbers; stands under the heading, but for `%`.
        text: key of the heading, where it is not among the table's own.
        of: a name, in place of `…` in the heading.
        form: format of numbers, instead of three or four digits.
        words: where the translations of its texts are.
        beside: never in another table than the column before it.
    """

    key: str
    heading: str
    unit: str = ""
    _: KW_ONLY
    text: str = ""
    of: str = ""
    form: str = ""
    words: str = ""
    beside: bool = False

    def title(self, section: str, label: Label) -> str:
        """The heading in a language, the unit on a line of its own."""
        said = label(self.text or f"{section}.{self.key}", self.heading)
        named = said.replace("…", self.of) if self.of else said
        return f"{named}\n({label(f'units.{self.unit}', self.unit)})" if self.unit not in ("", "%") else named

    def cell(self, row: Row, label: Label) -> str:
        """Its cell in a row: a number, text, an interval, or nothing."""
        match row.get(self.key):
            case str() as text:
                return label(f"{self.words}.{text.replace(' ', '_')}", text) if self.words else text
            case (float() as low, float() as high):
                return format_interval((low, high))
            case float() | int() as number:
                return format(number, self.form) if self.form else format_value(number, self.unit)
        return ""


ARM = Column("arm", "arm", text="headings.arm")


def columns(unit: str = "", **headings: str) -> list[Column]:
    """Columns of one unit: key to heading."""
    return [Column(key, heading, unit) for key, heading in headings.items()]


@dataclass(frozen=True, slots=True)
class Spec:
    """A table.

    Attributes:
        section: where its texts are.
        title: in English; empty for none.
        rows: of what it is of, in a language.
        columns: all, or which of the rows.
        keys: how many of the first columns tell the rows apart.
        compact: columns that are empty in every row are left out.
    """

    section: str
    title: str
    rows: Callable[[Any, Label], Sequence[Row]]
    columns: Sequence[Column] | Callable[[Sequence[Row]], Sequence[Column]]
    keys: int = 1
    compact: bool = False

    def table(self, source: Any, label: Label = in_english) -> Table | None:
        """The table in a language; None where no row has a cell beside its keys."""
        rows = self.rows(source, label)
        if not rows:
            return None
        every = self.columns(rows) if callable(self.columns) else self.columns
        if self.compact:
            every = [column for column in every if any(column.cell(row, label) for row in rows)]
        cells = [[column.cell(row, label) for column in every] for row in rows]
        if not any(any(line[self.keys :]) for line in cells):
            return None
        return Table(
            [column.title(self.section, label) for column in every],
            cells,
            label(f"{self.section}.title", self.title) if self.title else "",
            [place for place, column in enumerate(every) if column.beside],
            MARKDOWN_WIDTH,
            self.keys,
        )


def summary_rows(
    summaries: Mapping[str, Mapping[str, object]],
    improvements: Mapping[str, Mapping[str, float]] | None = None,
    metrics: Sequence[Metric] = METRICS,
) -> Rows:
    """One row per metric that at least one summary has.

    Args:
        summaries: column title to summary.
        improvements: column title to improvement in percent by metric key, for comparisons.
        metrics: which, in order.

    Returns:
        Columns `metric`, `title`, `unit`, one per summary, one per improvement. A summary titled like one of the first
        three is called `run metric`, `run title` or `run unit`.
    """
    summaries = {f"run {title}" if title in _TEXT_COLUMNS else title: found for title, found in summaries.items()}
    rows = []
    for metric in metrics:
        values = {title: lookup(summary, metric.key) for title, summary in summaries.items()}
        if all(value is None for value in values.values()):
            continue
        gains = {title: gain.get(metric.key) for title, gain in (improvements or {}).items()}
        rows.append({"metric": metric.key, "title": metric.title, "unit": metric.unit, **values, **gains})
    text = dict.fromkeys(_TEXT_COLUMNS, pl.String)
    numbers = dict.fromkeys((*summaries, *(improvements or {})), pl.Float64)
    return pl.DataFrame(rows, schema={**text, **numbers})

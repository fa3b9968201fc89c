"""Tables as text: CSV for programs, Markdown for people."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dynbench.runs.atomic import jsonable

Label = Callable[[str, str], str]
"""Key of a text and the text in English, to the text in a language."""

MARKDOWN_WIDTH = 100
"""Characters of a line of Markdown that is read as it stands."""

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"(?<!\\)((?:\\\\)*)\](?=[(:\[])")
"""A bracket that may end a link's text, and is not escaped yet."""
_LINES = re.compile(r"\s*\n\s*")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_NUMBER = r"(?:(?:[<>] ?)?[+-]?[\d,]*\.?\d+(?:e[+-]?\d+)? ?[%x]?|nan|-?inf)"
_NUMBERS = re.compile(rf"-?|{_NUMBER}|\[{_NUMBER},\s{_NUMBER}\]")


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people.

    Attributes:
        columns: the header, of one line or more.
        rows: cells.
        title: a line above; empty for none.
        beside: positions of columns that never stand in another table than the one before them.
        width: characters that a line of Markdown has at most; columns beyond follow as a further table of the same
            rows. None keeps all in one.
        keys: how many of the first columns tell the rows apart; every further table has them.
        texts: how many of the first columns are to the left; None for all that hold anything but numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    beside: Collection[int] = ()
    width: int | None = None
    keys: int = 1
    texts: int | None = None

    def markdown(self, *, whole: bool = False) -> Markdown:
        """The table under its title, numbers to the right; a whole one is as wide as it is."""

        def lines(chosen: Sequence[int]) -> str:
            rule = ["---:" if numeric[index] else "---" for index in chosen]
            header, *rows = ([line[index] for index in chosen] for line in (self.columns, *self.rows))
            return pipes([header, rule, *rows])

        def fits(chosen: Sequence[int]) -> bool:
            return whole or self.width is None or max(map(len, lines(chosen).splitlines())) <= self.width

        numeric = numeric_columns(len(self.columns), self.rows)
        if self.texts is not None:
            numeric = [place >= self.texts for place in range(len(self.columns))]
        parts = split_columns(len(self.columns), self.keys, fits, self.beside)
        title = [f"**{self.title[0].upper()}{self.title[1:]}**"] if self.title else []
        return Markdown("\n\n".join([*title, *map(lines, parts)]))


def printable(text: str) -> str:
    r"""A text that moves no cursor, sets no colour and turns no line around: what would is written out, as `\x1b`.

    Names and messages may come from files that anybody made.
    """
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


class Markdown(str):
    """A text that is Markdown on purpose, so that it is not `quoted`."""


def quoted(text: str) -> str:
    """A text that is text wherever Markdown has it: no HTML, link, image, or line of its own begins in it.

    What is quoted already stays as it is.
    """
    return _LINK.sub(r"\1\\]", _TAG.sub("&lt;", _LINES.sub(" ", printable(text))))


def split_columns(
    columns: int, keys: int, fits: Callable[[Sequence[int]], bool], beside: Collection[int] = ()
) -> list[list[int]]:
    """Positions of the columns of each table: as many as fit beside the keys, at least one, with those beside it.

    Args:
        columns: how many there are.
        keys: how many of the first columns every table opens with.
        fits: whether a table of such columns can be shown.
        beside: positions that stay with the one before them.
    """
    parts = [list(range(min(keys, columns)))]
    index = keys
    while index < columns:
        end = index + 1
        while end in beside:
            end += 1
        block = list(range(index, end))
        if len(parts[-1]) > keys and not fits([*parts[-1], *block]):
            parts.append(list(range(keys)))
        parts[-1] += block
        index = end
    return parts


def numeric_columns(columns: int, rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold numbers and intervals only."""
    return [bool(rows) and all(_NUMBERS.fullmatch(row[index]) for row in rows) for index in range(columns)]


def csv_text(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows as CSV in full precision; the columns are those of all rows.

    What is absent, null, NaN or infinite is empty, truth is `true` and `false`, and a list or mapping is JSON.
    """
    records = [{key: _plain(value) for key, value in row.items()} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in records for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def pipes(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells as those of a Markdown table, its rule among them; a cell is one line of text."""
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _plain(value: object) -> object:
    plain = jsonable(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, bool | list | dict) else plain


def _cell(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", " ", quoted(text).replace("|", "\\|"))  # unlike split(), keeps no-break spaces


def in_english(_key: str, text: str) -> str:
    """The `Label` of what is not translated."""
    return text


def format_value(value: float | None, unit: str) -> str:
    """A number for reading: three or four digits, percent for fractions, an empty cell for nothing."""
    if value is None:
        return ""
    if unit == "%":
        return f"{100 * value:z.1f} %"
    magnitude = abs(value)
    if magnitude >= 1000 or unit == "bytes":
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if magnitude >= 0.01 or value == 0 else f"{value:.2g}"


def signed(value: float, digits: int) -> str:
    """`+1.30`; what rounds to nothing has no sign."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def format_gain(percent: float | None) -> str:
    """An improvement for reading."""
    return "" if percent is None else f"{signed(percent, 1)} %"


def format_ratio(value: float | None) -> str:
    """`1.314`; an empty cell for nothing."""
    return "" if value is None else f"{value:.3f}"


def format_interval(ends: tuple[float, float] | None) -> str:
    """`[1.251, 1.380]` of a ratio, `[<0.01, >100]` where its ends say nothing; an empty cell for an estimate."""
    return "" if ends is None else f"[{_end(ends[0])}, {_end(ends[1])}]"


def _end(value: float) -> str:
    return "<0.01" if value < 0.01 else f"{value:.3f}" if value <= 100 else ">100"

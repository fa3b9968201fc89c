"""Tables as text: CSV for programs, Markdown for people."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from dynbench.runs.atomic import jsonable


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
    return re.sub(r"[ \t\r\n]+", " ", text.replace("|", "\\|"))  # unlike split(), keeps no-break spaces

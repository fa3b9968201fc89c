"""Tables with a header line: what tab-separated and other separated files share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.files import FileRows, check_columns

NO_HEADER = "The first line must name the columns, like sentence and label; this one holds a number."


def table_rows(
    path: Path,
    header: tuple[int, Sequence[str]],
    rows: Iterable[tuple[int, Sequence[str]]],
    settings: Workload,
    advice: str,
) -> FileRows:
    """The samples of a table.

    Args:
        path: the file.
        header: number of the header's line, and its columns.
        rows: number of each row's first line, and its fields.
        settings: the columns to read.
        advice: what to do where the columns are missing because the file is of another kind; may be empty.

    Raises:
        DataError: missing column, a row of the wrong width, no rows, a label that cannot be one.
    """
    line, columns = header
    unnamed = NO_HEADER if any(column.strip().isdecimal() for column in columns) else ""
    check_columns(f"{path}:{line}", settings, columns, advice or unnamed)
    asked = options_of(settings, TextFileOptions)
    text_index, label_index = columns.index(asked.text_column), columns.index(asked.label_column)
    found = FileRows(path)
    for number, fields in rows:
        if len(fields) != len(columns):
            seen = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise DataError(
                f"{path}:{number}: {seen}; expected {len(columns)}, as in the header",
                "A text with the separator or a line break in it must be in quotes, which --dataset csv reads.",
            )
        found.add(number, fields[text_index], fields[label_index], asked.text_column)
    if not found.texts:
        raise DataError(f"{path}:{line}: no rows after the header; expected one sample per line")
    return found

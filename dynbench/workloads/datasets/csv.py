"""Files separated by commas, semicolons, bars or tabs, as RFC 4180 quotes them: a header line, then the samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.files import FileRows, load_files, table_rows
from dynbench.workloads.datasets.lines import looks_like, read_text

EXPECTED = "expected a header line with separated column names, then one sample per line, quoted where needed"
DELIMITERS = ",;\t|"
LONGEST_FIELD = 2**24
"""Characters; a quote that is never closed is found there, if not at the file's end."""

Row = tuple[int, list[str]]
"""Number of its first line, and its fields."""


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse)


def parse(path: Path, key: str, settings: Workload) -> FileRows:
    """The labelled texts of one file, in its order; empty lines are skipped.

    The separator is the one that parts the header into the columns asked for, else into the most columns.

    Raises:
        DataError: missing or empty file, missing column, bad quotes, a row of the wrong width, a label that cannot be
            one.
    """
    text, asked = read_text(path, key, EXPECTED), options_of(settings, TextFileOptions)

    def fit(delimiter: str) -> tuple[bool, int]:
        columns = _header(path, text, delimiter)[1]
        return {asked.text_column, asked.label_column} <= set(columns), len(columns)

    delimiter = max(DELIMITERS, key=fit)
    rows = _rows(path, text, delimiter)
    next(rows, None)
    return table_rows(path, _header(path, text, delimiter), rows, settings, _advice(text))


def _advice(text: str) -> str:
    line = text.lstrip().partition("\n")[0]
    return looks_like(line, "csv") if line[:1] in "{[" else ""


def _header(path: Path, text: str, delimiter: str) -> Row:
    """The first row; spaces around the names of columns are none of theirs."""
    number, columns = next(_rows(path, text, delimiter), (1, []))
    return number, [column.strip() for column in columns]


def _rows(path: Path, text: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: {error}; {EXPECTED}",
                'Put such a field in quotes, and write a quote within it twice: "a ""good"" film".',
            ) from error
        if len(fields) > 1 or any(field.strip(" ") for field in fields):
            yield number, fields

"""Tab-separated files: a header line, then one sample per line; quotes and backslashes are plain text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.datasets.files import check_label, load_files, missing_column
from dynbench.workloads.datasets.lines import read_lines

EXPECTED = "expected a header line with tab-separated column names, then one sample per line"

_INTEGER = re.compile("[0-9]{1,9}")


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse)


def parse(path: Path, key: str, settings: Workload) -> TextSplit:
    """The labelled texts of one file, in its order.

    Raises:
        DataError: missing or empty file, missing column, a row of the wrong width, a label that is no integer.
    """
    header, *rows = read_lines(path, key, EXPECTED)
    columns = header.split("\t")
    for column_key, column in (("text_column", settings.text_column), ("label_column", settings.label_column)):
        if column not in columns:
            raise missing_column(f"{path}:1", column_key, column, columns)
        if columns.count(column) > 1:
            raise DataError(f"{path}:1: column {column!r} occurs {columns.count(column)} times; expected once")
    if not rows:
        raise DataError(f"{path}:1: no rows after the header; {EXPECTED}")
    text_index, label_index = columns.index(settings.text_column), columns.index(settings.label_column)
    texts, labels = [], np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        fields = row.split("\t")
        if len(fields) != len(columns):
            raise DataError(f"{path}:{index + 2}: {len(fields)} fields; expected {len(columns)}, as in the header")
        texts.append(fields[text_index])
        labels[index] = check_label(f"{path}:{index + 2}", _number(fields[label_index]))
    return TextSplit(texts, labels, str(path))


def _number(field: str) -> int | str:
    return int(field) if _INTEGER.fullmatch(field) else field

"""JSON Lines files: one object per line, with a text and an integer label."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.datasets.files import check_label, load_files, missing_column
from dynbench.workloads.datasets.lines import read_lines

EXPECTED = "expected one JSON object per line"


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse)


def parse(path: Path, key: str, settings: Workload) -> TextSplit:
    """The labelled texts of one file, in its order.

    Raises:
        DataError: missing or empty file, a line that is no object, a missing key, a text or label of another type.
    """
    lines = read_lines(path, key, EXPECTED)
    texts, labels = [], np.empty(len(lines), dtype=np.int64)
    for index, line in enumerate(lines):
        text, labels[index] = _sample(f"{path}:{index + 1}", line, settings)
        texts.append(text)
    return TextSplit(texts, labels, str(path))


def _sample(where: str, line: str, settings: Workload) -> tuple[str, int]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise DataError(f"{where}: {what} at character {error.pos + 1}; {EXPECTED}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: {type(row).__name__}; {EXPECTED}")
    for column_key, column in (("text_column", settings.text_column), ("label_column", settings.label_column)):
        if column not in row:
            raise missing_column(where, column_key, column, list(row))
    text, label = row[settings.text_column], row[settings.label_column]
    if not isinstance(text, str):
        raise DataError(f"{where}: {settings.text_column!r} is {type(text).__name__}; expected a string")
    if not _is_unicode(text):
        raise DataError(f"{where}: {settings.text_column!r} holds half a surrogate pair; expected Unicode text")
    return text, check_label(where, label)


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can spell as escapes and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

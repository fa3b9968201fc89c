"""JSON Lines files: one object per line, with a text and a label, or with a text alone, read as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.articles import TITLE, article, has_classes, stream_files
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.files import ODD_LINE, FileRows, check_columns, load_files, text_column
from dynbench.workloads.datasets.lines import looks_like, numbered, quoted, read_lines, why_no_text

EXPECTED = "expected one JSON object per line"


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`; without classes, texts that are still to be read.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse) if has_classes(settings) else stream_files(settings, read)


def parse(path: Path, key: str, settings: Workload) -> FileRows:
    """The labelled texts of one file, in its order; empty lines are skipped.

    Raises:
        DataError: missing or empty file, a line that is no object, a missing key, a text or label of another type.
    """
    found, asked = FileRows(path), options_of(settings, TextFileOptions)
    for number, line in numbered(read_lines(path, key, EXPECTED)):
        where = f"{path}:{number}"
        row = _object(where, line, looks_like(line, "jsonl") if not found.texts else "")
        check_columns(where, settings, list(row), ODD_LINE if found.texts else "")
        found.add(number, row[asked.text_column], row[asked.label_column], asked.text_column)
    return found


def read(path: Path, settings: Workload) -> Iterator[str]:
    """The texts of one file, in its order, below their titles where its objects have them; empty lines are skipped.

    Raises:
        DataError: as `parse`, but for labels.
    """
    column = ""
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                line = content.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                byte = content[error.start]
                raise DataError(
                    f"{where}: byte 0x{byte:02x} is not UTF-8 text; {EXPECTED}", why_no_text(content, path)
                ) from error
            if not line.strip(" "):
                continue
            row = _object(where, line, "" if column else looks_like(line, "jsonl"))
            column = text_column(where, settings, list(row), column)
            yield article(where, row[column], row.get(TITLE) if column != TITLE else None, column)
    if not column:
        raise DataError(f"{path}:1: the file is empty; {EXPECTED}")


def _object(where: str, line: str, advice: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise DataError(
            f"{where}: {what} at character {error.pos + 1} of {quoted(line)}; {EXPECTED}", advice
        ) from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise DataError(f"{where}: {error}; {EXPECTED}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: {type(row).__name__}; {EXPECTED}", advice)
    return row

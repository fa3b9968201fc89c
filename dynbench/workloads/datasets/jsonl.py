"""JSON Lines files: one object per line, with a text and a label."""

from __future__ import annotations

import json
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.files import FileRows, check_columns, load_files
from dynbench.workloads.datasets.formats import looks_like
from dynbench.workloads.datasets.lines import numbered, quoted, read_lines

EXPECTED = "expected one JSON object per line"
ODD_LINE = "The lines before it have what is missing: correct this line, or leave it out."


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse)


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

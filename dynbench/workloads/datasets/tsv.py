"""Tab-separated files: a header line, then one sample per line; quotes and backslashes are plain text."""

from __future__ import annotations

from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.files import FileRows, load_files, table_rows
from dynbench.workloads.datasets.lines import looks_like, numbered, read_lines

EXPECTED = "expected a header line with tab-separated column names, then one sample per line"


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`.

    Raises:
        DataError: a file that cannot be used; the message names file and line.
    """
    return load_files(settings, parse)


def parse(path: Path, key: str, settings: Workload) -> FileRows:
    """The labelled texts of one file, in its order; empty lines are skipped.

    Raises:
        DataError: missing or empty file, missing column, a row of the wrong width, a label that cannot be one.
    """
    lines = numbered(read_lines(path, key, EXPECTED))
    number, header = next(lines)
    rows = ((line, row.split("\t")) for line, row in lines)
    return table_rows(path, (number, header.split("\t")), rows, settings, looks_like(header, "tsv"))

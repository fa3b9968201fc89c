"""Parquet files: labelled texts, or texts read as a stream, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import TextFileOptions
from dynbench.workloads.datasets.articles import TITLE, article, has_classes, stream_files
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.files import FileRows, check_columns, load_files, text_column
from dynbench.workloads.hub import first_line

if TYPE_CHECKING:
    import polars as pl

EXPECTED = "expected a Parquet file with a column of texts"
ROWS = 2048
"""Rows held at a time."""


def load(settings: Workload) -> Splits:
    """The samples of `data_path` and `eval_path`; without classes, texts that are still to be read.

    Raises:
        DataError: a file that cannot be used.
    """
    return load_files(settings, parse) if has_classes(settings) else stream_files(settings, read)


def parse(path: Path, key: str, settings: Workload) -> FileRows:
    """The labelled texts of one file, in its order.

    Raises:
        DataError: no Parquet file, a missing column, no rows, a text or label that is none.
    """
    asked, found = options_of(settings, TextFileOptions), FileRows(path)
    try:
        scanned, columns = _scanned(path)
        check_columns(f"{path}:1", settings, columns)
        for batch in _batches(path, scanned, (asked.text_column, asked.label_column)):
            for text, label in batch.iter_rows():
                found.add(len(found.texts) + 1, text, label, asked.text_column)
    except OSError as error:
        raise DataError(f"{key}: {path}: {error.strerror or error}") from error
    if not found.texts:
        raise DataError(f"{path}: no rows; {EXPECTED}")
    return found


def read(path: Path, settings: Workload) -> Iterator[str]:
    """The texts of one file, in its order, below their titles where it has a column of them.

    Raises:
        DataError: no Parquet file, a missing column, no rows, a text that is none.
    """
    scanned, columns = _scanned(path)
    column = text_column(f"{path}:1", settings, columns)
    wanted = (column, TITLE) if TITLE in columns and column != TITLE else (column,)
    row = 0
    for batch in _batches(path, scanned, wanted):
        for text, *title in batch.iter_rows():
            row += 1
            yield article(f"{path}: row {row}", text, title[0] if title else None, column)
    if row == 0:
        raise DataError(f"{path}: no rows; {EXPECTED}")


def _scanned(path: Path) -> tuple[pl.LazyFrame, list[str]]:
    """The file, unread, and its columns."""
    import polars as pl

    try:
        scanned = pl.scan_parquet(path, glob=False)
        return scanned, scanned.collect_schema().names()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DataError(f"{path}: {first_line(error)}; {EXPECTED}") from error


def _batches(path: Path, scanned: pl.LazyFrame, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The columns asked for, `ROWS` rows at a time."""
    import polars as pl

    begin = 0
    while True:
        try:
            batch = scanned.select(columns).slice(begin, ROWS).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise DataError(f"{path}: row {begin + 1}: {first_line(error)}; {EXPECTED}") from error
        if not len(batch):
            return
        yield batch
        begin += ROWS

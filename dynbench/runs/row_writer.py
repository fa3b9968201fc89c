"""Writing a rank's rows: one file per rank, one write per row, on disk as far as the kernel when the step ends."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from dynbench.runs.records import COLUMNS, StepRow


class LineFile:
    """Appends lines to a CSV file that opens with a header.

    What is appended together is one `os.write`, so a killed process leaves whole lines, and at most one torn line when
    the disk is full.

    Args:
        path: the file; lines are appended when it exists.
        columns: of the header.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        header = _lines([columns])
        if path.exists() and path.stat().st_size > 0:
            with path.open("rb") as file:
                present = file.readline()
            if present != header:
                raise ValueError(f"{path} has other columns: {present.decode(errors='replace').strip()}")
            header = b""
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._append(header)

    def append(self, *rows: Iterable[object]) -> None:
        """Append a line for each row.

        Raises:
            OSError: the disk is full.
        """
        self._append(_lines(rows))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            error.filename = str(self._path)
            raise


class RowWriter:
    """Appends rows to the file of a rank.

    Args:
        path: the file; rows are appended when it exists.
        extra: columns after those of `StepRow`, in order.
        also: told every row, with its extra columns, once it is written.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(
        self,
        path: Path,
        extra: Sequence[str] = (),
        also: Callable[[StepRow, Mapping[str, object]], None] = lambda row, extra: None,
    ) -> None:
        self.columns = (*COLUMNS, *extra)
        self._extra = tuple(extra)
        self._also = also
        self._file = LineFile(path, self.columns)

    def write(self, row: StepRow, extra: Mapping[str, object] | None = None) -> None:
        """Append one row.

        Args:
            row: the step.
            extra: a value for each extra column.

        Raises:
            KeyError: an extra column has no value.
            OSError: the disk is full.
        """
        values = extra or {}
        self._file.append((*astuple(row), *(values[column] for column in self._extra)))
        self._also(row, values)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()

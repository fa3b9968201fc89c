"""What stands beside a run's record in its `ranks` folder: rows, the times of calls, the lengths trained on.

Rows say how long a step's calls took, `calls` files when each was under way, which separates waiting from transfer.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from dynbench.errors import RecordError
from dynbench.runs.records import COLUMNS, StepRow

if TYPE_CHECKING:
    from dynbench.runs.run import Run

MOST_CALLS = 500_000
"""Kept of a rank, about 30 MB; the steps after that have none."""
EVERYONE = -1
"""The peer of what all ranks take part in."""


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            error.filename = str(self._path)
            raise


class RowWriter(LineFile):
    """Appends rows to the file of a rank.

    Args:
        path: the file; rows are appended when it exists.
        extra: columns after those of `StepRow`, in order.
        also: called with every row and its extra columns, once it is written.

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
        super().__init__(path, self.columns)

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
        self.append((*astuple(row), *(values[column] for column in self._extra)))
        self._also(row, values)


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation on one rank."""

    operation: str
    """all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send or receive."""
    peer: int
    """The other rank of a send or receive; -1 of what all ranks take part in."""
    number: int
    """Of the calls with this peer in this direction, or of those that all ranks take part in, from 0; the same on all
    ranks that take part."""
    bytes_wire: int
    """Sent by this rank, by the operation's formula."""
    start_ns: int
    """When it was called, on this rank's clock."""
    end_ns: int
    """When it was complete."""


CALL_COLUMNS = ("step", *(field.name for field in fields(Call)))


class CallWriter(LineFile):
    """Appends the calls of each step, as long as they are not too many.

    Args:
        path: the file.
        most: calls that are written; a step whose calls would be more, and every later one, is left out.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(self, path: Path, most: int = MOST_CALLS) -> None:
        super().__init__(path, CALL_COLUMNS)
        self._left = most

    def write(self, step: int, calls: Sequence[Call]) -> None:
        """Keep the calls that were completed in a step.

        Raises:
            OSError: the disk is full.
        """
        self._left = self._left - len(calls) if len(calls) <= self._left else -1
        if calls and self._left >= 0:
            self.append(*((step, *astuple(call)) for call in calls))


LENGTHS_FILE = "lengths.npz"
"""Beside the rows of the ranks."""


@dataclass(frozen=True)
class RunLengths:
    """What plans are made from.

    Args:
        lengths: tokens of every training sample, shape [N].
        positions: longest padded sample that the model takes, tokens; None for any.
    """

    lengths: NDArray[np.int64]
    positions: int | None


def write_lengths(run: Run, lengths: NDArray[np.int64], positions: int | None) -> None:
    """Keep the lengths of the training samples."""
    np.savez_compressed(run.ranks_dir / LENGTHS_FILE, lengths=lengths, positions=np.int64(positions or 0))


def read_lengths(run: Run) -> RunLengths:
    """The lengths that a run trained on.

    Raises:
        RecordError: it has none, or the file cannot be read.
    """
    path = run.ranks_dir / LENGTHS_FILE
    try:
        with np.load(path, allow_pickle=False) as arrays:
            lengths, positions = np.asarray(arrays["lengths"], dtype=np.int64), int(arrays["positions"])
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it ended before its data was known" if isinstance(error, FileNotFoundError) else str(error)
        raise RecordError(
            f"{path}: the lengths that {run.label} trained on cannot be read: {reason}",
            "Its workload's own code knows them: dynbench solve --workload NAME.",
        ) from None
    if lengths.ndim != 1 or not len(lengths) or lengths.min() < 1:
        raise RecordError(f"{path}: holds no lengths of at least one token", "Train again.")
    return RunLengths(lengths, positions or None)

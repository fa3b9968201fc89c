"""When a strategy's collectives were under way on a rank, call by call, in a file beside the rank's rows.

Rows say how long; these say when, so that what a rank waited for the others is told apart from the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from dynbench.runs.row_writer import LineFile

MOST_CALLS = 500_000
"""Kept of a rank, about 30 MB; the steps after that have none."""
EVERYONE = -1
"""The peer of what all ranks take part in."""


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


class CallWriter:
    """Appends the calls of each step, as long as they are not too many.

    Args:
        path: the file.
        most: calls that are kept; a step whose calls would be more, and every later one, is left out.

    Raises:
        ValueError: the file exists with other columns.
    """

    def __init__(self, path: Path, most: int = MOST_CALLS) -> None:
        self._file = LineFile(path, CALL_COLUMNS)
        self._left = most

    def write(self, step: int, calls: Sequence[Call]) -> None:
        """Keep the calls that were completed in a step.

        Raises:
            OSError: the disk is full.
        """
        self._left = self._left - len(calls) if len(calls) <= self._left else -1
        if calls and self._left >= 0:
            self._file.append(*((step, *astuple(call)) for call in calls))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> CallWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Room on the disk for saying how a run ended, kept while it runs: a full disk must not leave it without an end."""

from __future__ import annotations

from pathlib import Path

RESERVE_BYTES = 2**18
"""Holds `run.json`, `env.json` and what some tens of ranks write about their failure, a block of the disk each."""

_NAME = ".reserve"


def reserve(folder: Path) -> None:
    """Take the room; `release` gives it back.

    Raises:
        OSError: there is not that much.
    """
    (folder / _NAME).write_bytes(bytes(RESERVE_BYTES))


def release(folder: Path) -> None:
    """Give the room back; where none was taken, nothing happens."""
    (folder / _NAME).unlink(missing_ok=True)

"""One process at a time: an advisory lock on a file, released by the system when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on a file, which is made where it is missing and stays; others wait.

    Raises:
        OSError: the file cannot be opened, or its file system has no locks.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

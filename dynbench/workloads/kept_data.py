"""What the cache of tokenised data holds, and what of it may go: subsets and lengths that nobody asks for any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dynbench.runs.lock import locked
from dynbench.workloads.token_shards import RECORD

_FILES = re.compile(r"[0-9a-f]{32}\.npz|.+\.contents\.json|wikipedia-.+\.json|images-.+\.json")
"""Names of what we keep in single files; nothing else in the folder is looked at."""


@dataclass(frozen=True)
class KeptData:
    """One thing in the cache.

    Args:
        path: a file, or a folder of shards.
        size: bytes.
        used: when it was last read or written, seconds since the epoch.
    """

    path: Path
    size: int
    used: float

    def remove(self) -> None:
        """Take it off the disk; whoever writes it is waited for, whoever reads it goes on.

        Raises:
            OSError: it cannot be removed.
        """
        is_folder = self.path.is_dir()
        with locked(_lock_of(self.path) if is_folder else self.path.with_suffix(".lock")):
            if is_folder:
                (self.path / RECORD).unlink(missing_ok=True)  # first: shards that no record lists are of no use
                shutil.rmtree(self.path)
            else:
                self.path.unlink(missing_ok=True)


def kept_data(folder: Path) -> list[KeptData]:
    """What a cache folder holds, used last first; empty where there is none."""
    return sorted(_found(folder), key=lambda kept: -kept.used)


def _found(folder: Path) -> Iterator[KeptData]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and _lock_of(path).is_file():
            record = path / RECORD
            used = (record if record.exists() else path).stat().st_mtime
            yield KeptData(path, sum(file.stat().st_size for file in path.iterdir()), used)
        elif path.is_file() and _FILES.fullmatch(path.name):
            found = path.stat()
            yield KeptData(path, found.st_size, max(found.st_mtime, found.st_atime))


def _lock_of(folder: Path) -> Path:
    """What a writer of shards holds; it tells our folders from others."""
    return folder.with_name(f"{folder.name}.lock")

"""What a run folder may hold: files and folders of its own. A folder from a stranger may lead anywhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dynbench.errors import RecordError


def check_own_files(folder: Path) -> None:
    """Refuse a run folder with a link that leads out of it, and with what is neither a file nor a folder.

    Through such a link an analysis would write elsewhere and a report show what lies there; from a pipe or a device it
    would read without an end. Links within the folder lead nowhere else.

    Raises:
        RecordError: the first of them.
    """
    for path, reason in _strange(folder):
        raise RecordError(f"{path}: {reason}, so the run is not read", "Remove it, or put what is meant in its place.")


def _strange(folder: Path) -> Iterator[tuple[Path, str]]:
    base = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for path in (Path(place) / name for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # gone meanwhile
                continue
            if stat.S_ISLNK(mode):
                target = os.path.realpath(path)
                if not target.startswith(f"{base}{os.sep}") or not path.exists():
                    yield path, "is a link that leads out of the folder, or nowhere"
            elif not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                yield path, "is a pipe, a socket or a device"

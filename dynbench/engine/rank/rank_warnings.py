"""Warnings of rank 0, handed to the launcher: a log that nobody reads is no place for them."""

from __future__ import annotations

import logging
from pathlib import Path

from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.run import Run


class _ToFile(logging.Handler):
    """Appends each warning of ours once, a line each."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if text not in self._seen:
            self._seen.add(text)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def keep_warnings(run: Run, context: RankContext) -> None:
    """From here on, what dynbench warns about on rank 0 is kept; what it says about other ranks is theirs too."""
    if context.is_first:
        logging.getLogger("dynbench").addHandler(_ToFile(_file(run)))


def read_warnings(run: Run) -> list[str]:
    """What rank 0 warned about, each once."""
    path = _file(run)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _file(run: Run) -> Path:
    return run.ranks_dir / "warnings.txt"

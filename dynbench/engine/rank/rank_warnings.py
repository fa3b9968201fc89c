"""What ranks say that people have to see, handed to the launcher: a log that nobody reads is no place for it."""

from __future__ import annotations

import logging
from pathlib import Path

from dynbench.config.ranks import Ranks
from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.run import Run
from dynbench.workloads import pace


class _ToFile(logging.Handler):
    """Appends each text once, a line each."""

    def __init__(self, path: Path, level: int) -> None:
        super().__init__(level)
        self._path = path
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if text not in self._seen:
            self._seen.add(text)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


class _LastLine(logging.Handler):
    """Keeps what was said last about something that takes long."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        self._path.write_text(record.getMessage(), encoding="utf-8")


def keep_warnings(run: Run, context: RankContext, ranks: Ranks) -> None:
    """From here on, what dynbench warns about is kept, and on rank 0 how far the preparing of its data has got.

    Of rank 0 and of the first that trains, which speak for the others.
    """
    if context.speaks(ranks):
        logging.getLogger("dynbench").addHandler(_ToFile(_file(run), logging.WARNING))
    if context.is_first:
        logging.getLogger(pace.__name__).addHandler(_LastLine(_preparing_file(run)))


def read_warnings(run: Run) -> list[str]:
    """What ranks warned about, each once."""
    path = _file(run)
    return list(dict.fromkeys(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def read_epochs(run: Run) -> list[str]:
    """What came of the epochs of a run that have ended, a line each."""
    path = epochs_file(run)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def read_preparing(run: Run) -> str:
    """How far the preparing of the data had got when rank 0 last said it; empty where that took no time."""
    path = _preparing_file(run)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def epochs_file(run: Run) -> Path:
    """Where the first rank writes what came of an epoch."""
    return run.ranks_dir / "epochs.txt"


def _preparing_file(run: Run) -> Path:
    return run.ranks_dir / "preparing.txt"


def _file(run: Run) -> Path:
    return run.ranks_dir / "warnings.txt"

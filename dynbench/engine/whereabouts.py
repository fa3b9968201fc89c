"""Where a rank is, kept in a small file that outlives it: of one that hangs or was killed, it can still be told."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dynbench.runs.run import Run

MEETING = "meeting the other ranks"
PREPARING = "preparing its data"
BUILDING = "building its model"
ROW = "recording"
EVALUATING = "evaluation"
_ORDER = (
    *(MEETING, PREPARING, BUILDING),
    *("plan", "data", "forward", "backward", "sync", "optimizer"),
    *(ROW, EVALUATING),
)
_BYTES = 96
_FILE = re.compile(r"at_(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank was at."""

    step: int | None
    """Of its arm; None before the first one, and where there are none."""
    phase: str
    """Of the step, or what comes before and after."""

    def __str__(self) -> str:
        """As a message goes on: `while preparing its data`, `in backward of step 12`."""
        return f"while {self.phase}" if self.step is None else f"in {self.phase} of step {self.step}"

    @property
    def progress(self) -> tuple[int, int]:
        """Less for a rank that has come less far."""
        position = _ORDER.index(self.phase) if self.phase in _ORDER else len(_ORDER)
        return -1 if self.step is None else self.step, position


class Whereabouts:
    """Notes where this rank is, once it is told in which run; a note copies some bytes and asks the system nothing."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._map: mmap.mmap | None = None
        self._step: int | None = None

    def keep(self, run: Run, rank: int) -> None:
        """Note it in this run from here on.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = run.ranks_dir / f"at_{rank}"
        file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.write(file, bytes(_BYTES))  # a page that finds no room later would kill the process
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def at(self, phase: str) -> None:
        """What this rank begins now."""
        if self._map is not None:
            step = "" if self._step is None else self._step
            self._map[:] = f"{step}:{phase}".encode()[:_BYTES].ljust(_BYTES, b"\0")

    def at_step(self, step: int) -> None:
        """The step that phases are of from here on."""
        self._step = step

    def arrived(self) -> None:
        """This rank has done all its work: nobody has to ask where it is."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def last_seen(run: Run, rank: int) -> Place | None:
    """Where a rank that did not end well was last; None where nothing is known."""
    try:
        text = (run.ranks_dir / f"at_{rank}").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None
    step, colon, phase = text.partition(":")
    return Place(int(step) if step.isdigit() else None, phase) if colon else None


def not_arrived(run: Run) -> list[int]:
    """The ranks that began and did not come to their end, as far as their notes can be seen here."""
    found = (_FILE.fullmatch(path.name) for path in run.ranks_dir.glob("at_*"))
    return sorted(int(match[1]) for match in found if match)

"""How far the ranks are, epochs among it."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from dynbench.engine.rank.rank_facts import read_epochs, read_preparing
from dynbench.runs.run import Run

POLL_S = 0.25
RECENT_STEPS = 20
"""Steps that rates and imbalance are taken over."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    steps_done: int
    """Steps that every rank has recorded, warm-up included."""
    total_steps: int
    elapsed_s: float
    """Since the launch."""
    loss: float | None = None
    """Mean loss over the last step's samples, each counting its weight; None where they weigh nothing."""
    tokens_per_s: float | None = None
    """Real tokens over recent steps."""
    imbalance: float | None = None
    """Longest over mean compute of the ranks that train, over recent steps; 1 is perfect."""
    preparing: str = ""
    """Before the first step, how far the preparing of the data has got, where it takes long."""
    unit: str = "tokens"
    """What `tokens_per_s` counts."""
    epochs: tuple[tuple[str, ...], ...] = ()
    """Of each run that shares the launch, what came of the epochs that have ended, a line each."""
    warmup_steps: int = 0
    """Those of the steps that do not count."""

    @property
    def place(self) -> str:
        """How far it is, in the requested steps, or in those of the warm-up."""
        measured = self.steps_done - self.warmup_steps
        if measured < 0:
            return f"warm-up {self.steps_done}/{self.warmup_steps}"
        return f"step {measured}/{self.total_steps - self.warmup_steps}"


OnProgress = Callable[[Progress], None]


class _RankFile:
    """What the file of one rank holds by now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._columns: list[str] = []
        self.recent: dict[str, dict[str, str]] = {}
        """The last rows by their step."""
        self.steps = 0

    def read(self) -> None:
        """Read the complete lines that were added since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = list(csv.reader(complete.decode("utf-8", errors="replace").splitlines()))
        if lines and not self._columns:
            self._columns = lines.pop(0)
        self.steps += len(lines)
        rows = [*self.recent.values(), *(dict(zip(self._columns, line, strict=False)) for line in lines)]
        self.recent = {row["step"]: row for row in rows[-RECENT_STEPS:]}

    @property
    def trains(self) -> bool:
        """Whether its rank had samples in its last step."""
        return bool(int(next(reversed(self.recent.values()))["real_tokens"]))


def _steps_done(files: Sequence[_RankFile]) -> int:
    """Steps that every rank of a run has recorded."""
    return min(file.steps for file in files)


def _with_rates(progress: Progress, files: Sequence[_RankFile]) -> Progress:
    """With what the recent steps show that all ranks of a run have recorded."""
    common = [step for step in files[0].recent if all(step in file.recent for file in files)]
    trained = [file for file in files if common and file.trains]
    if not trained:
        return progress
    steps = [[file.recent[step] for file in trained] for step in common]
    newest = steps[-1]
    weight = sum(float(row["weight"]) for row in newest)
    step_ms = sum(max(float(row["step_time_ms"]) for row in rows) for rows in steps)
    compute = [[float(row["compute_ms"]) for row in rows] for rows in steps]
    tokens = sum(int(row["real_tokens"]) for rows in steps for row in rows)
    longest, mean = sum(map(max, compute)), sum(sum(row) / len(row) for row in compute)
    return replace(
        progress,
        loss=sum(float(row["weight"]) * float(row["loss"]) for row in newest) / weight if weight else None,
        tokens_per_s=tokens / (step_ms / 1e3),
        imbalance=longest / mean if mean > 0 else None,
    )


@dataclass(eq=False)
class ProgressReader:
    """A daemon thread that reports what the local rank files show, until it is left.

    Args:
        runs: the run, or those of arms that share a launch, whose steps are then added up.
        ranks: of each, the ranks whose files are read.
        total_steps: steps of a run, warm-up included.
        on_progress: called in the thread whenever a step was completed, and once at the end.
        unit: what samples are counted in: of those without lengths, samples.
        warmup_steps: of the run's steps.
    """

    runs: Sequence[Run]
    ranks: Sequence[range]
    total_steps: int
    on_progress: OnProgress | None
    unit: str = "tokens"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        places = zip(self.runs, self.ranks, strict=True)
        self._arms = [[_RankFile(run.rank_file(rank)) for rank in of_run] for run, of_run in places]
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressReader:
        if self.on_progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self.on_progress is not None:
            self._thread.join()
            self.on_progress(self.look())

    def look(self) -> Progress:
        """Read what is new; rates are those of the arm that is ahead."""
        for file in chain.from_iterable(self._arms):
            file.read()
        done, arms = sum(map(_steps_done, self._arms)), len(self.runs)
        elapsed_s = time.monotonic() - self._started
        progress = Progress(done, self.total_steps * arms, elapsed_s, warmup_steps=self.warmup_steps * arms)
        ahead = max(self._arms, key=_steps_done)
        if not _steps_done(ahead):
            return replace(progress, preparing=read_preparing(self.runs[0]))
        epochs = tuple(tuple(read_epochs(run)) for run in self.runs)
        return replace(_with_rates(progress, ahead), epochs=epochs, unit=self.unit)

    def _watch(self) -> None:
        assert self.on_progress is not None
        shown: tuple[int, str, int] | None = None
        while not self._stop.wait(POLL_S):
            progress = self.look()
            seen = progress.steps_done, progress.preparing, sum(map(len, progress.epochs))
            if seen != shown:
                shown = seen
                self.on_progress(progress)

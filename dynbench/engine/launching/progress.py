"""How far the ranks are, epochs among it."""

from __future__ import annotations

import csv
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
        """How far it is, in the steps that were asked for, or in those of the warm-up."""
        measured = self.steps_done - self.warmup_steps
        if measured < 0:
            return f"warm-up {self.steps_done}/{self.warmup_steps}"
        return f"step {measured}/{self.total_steps - self.warmup_steps}"


OnProgress = Callable[[Progress], None]


class _Arm:
    """What the local rank files of one run show."""

    def __init__(self, run: Run, ranks: range) -> None:
        self._files = [run.rank_file(rank) for rank in ranks]
        self._offsets = [0] * len(ranks)
        self._columns: list[list[str]] = [[] for _ in ranks]
        self._rows: list[deque[dict[str, str]]] = [deque(maxlen=RECENT_STEPS) for _ in ranks]
        self._counts = [0] * len(ranks)

    @property
    def done(self) -> int:
        """Steps that every rank has recorded."""
        return min(self._counts)

    def look(self) -> None:
        """Read the complete lines that were added since the last look."""
        for index, path in enumerate(self._files):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[index])
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[index] += len(complete)
            lines = list(csv.reader(complete.decode("utf-8", errors="replace").splitlines()))
            if lines and not self._columns[index]:
                self._columns[index] = lines.pop(0)
            self._rows[index].extend(dict(zip(self._columns[index], line, strict=False)) for line in lines)
            self._counts[index] += len(lines)

    def with_rates(self, progress: Progress) -> Progress:
        """With what the recent steps show."""
        last = {row["step"] for row in self._rows[0]}
        for rows in self._rows[1:]:
            last &= {row["step"] for row in rows}
        if not last:
            return progress
        trained = (rows for rows in self._rows if int(rows[-1]["real_tokens"]))
        by_rank = [[row for row in rows if row["step"] in last] for rows in trained]
        if not by_rank:
            return progress
        newest = [rows[-1] for rows in by_rank]
        weight = sum(float(row["weight"]) for row in newest)
        step_ms = [max(float(row["step_time_ms"]) for row in rows) for rows in zip(*by_rank, strict=True)]
        compute = [[float(row["compute_ms"]) for row in rows] for rows in zip(*by_rank, strict=True)]
        tokens = sum(int(row["real_tokens"]) for rows in by_rank for row in rows)
        longest, mean = sum(map(max, compute)), sum(sum(row) / len(row) for row in compute)
        return replace(
            progress,
            loss=sum(float(row["weight"]) * float(row["loss"]) for row in newest) / weight if weight else None,
            tokens_per_s=tokens / (sum(step_ms) / 1e3),
            imbalance=longest / mean if mean > 0 else None,
        )


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

    def __init__(
        self,
        runs: Sequence[Run],
        ranks: Sequence[range],
        total_steps: int,
        on_progress: OnProgress | None,
        unit: str = "tokens",
        warmup_steps: int = 0,
    ) -> None:
        self._runs = runs
        self._arms = [_Arm(run, of_run) for run, of_run in zip(runs, ranks, strict=True)]
        self._total_steps, self._warmup_steps = total_steps * len(runs), warmup_steps * len(runs)
        self._on_progress = on_progress
        self._unit = unit
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressReader:
        if self._on_progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._on_progress is not None:
            self._thread.join()
            self._on_progress(self.look())

    def look(self) -> Progress:
        """Read what is new; rates are those of the arm that is ahead."""
        for arm in self._arms:
            arm.look()
        done = sum(arm.done for arm in self._arms)
        elapsed_s = time.monotonic() - self._started
        progress = Progress(done, self._total_steps, elapsed_s, warmup_steps=self._warmup_steps)
        ahead = max(self._arms, key=lambda arm: arm.done)
        if not ahead.done:
            return replace(progress, preparing=read_preparing(self._runs[0]))
        epochs = tuple(tuple(read_epochs(run)) for run in self._runs)
        return replace(ahead.with_rates(progress), epochs=epochs, unit=self._unit)

    def _watch(self) -> None:
        assert self._on_progress is not None
        shown: tuple[int, str, int] | None = None
        while not self._stop.wait(POLL_S):
            progress = self.look()
            seen = progress.steps_done, progress.preparing, sum(map(len, progress.epochs))
            if seen != shown:
                shown = seen
                self._on_progress(progress)

"""Evaluations during a run and its epochs; the models saved after them, and scalars for TensorBoard."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.config.schema import Config, Train, decided
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.errors import UsageError
from dynbench.lengths import padded_width
from dynbench.runs.atomic import settle_folder
from dynbench.runs.records import CORRECT, TURN, LineFile, StepRow
from dynbench.runs.run import Run
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Problem
from dynbench.sync.base import Strategy
from dynbench.workloads.base import Saves, Workload
from dynbench.workloads.batches import make_micro_batch
from dynbench.workloads.data import evaluated_ids

_log = logging.getLogger(__name__)
BEST, LAST = "best", "last"
MODEL_FOLDER = "model"
SCALARS_FOLDER = "tensorboard"
"""Within a run's folder."""
INSTALL = "pip install tensorboard"
FLUSH_S = 5
"""Longest time until TensorBoard sees a step, seconds; it is written in the background."""
_NOT_DRAWN = ("step", "rank", "warmup", "work_hash", TURN.name)
EVAL_BATCH = 64
EVAL_FILE = "eval.csv"
Found = dict[str, float | None]
"""The results of an evaluation, by the names of the columns in its file."""
SumOverRanks = Callable[[Sequence[float]], list[float]]
"""Adds up vectors over ranks."""


def _worth(found: Found) -> float:
    """By which of two evaluations the better model is known: the accuracy where it is counted, else the loss."""
    accuracy, loss = found.get("accuracy"), found.get("loss")
    if accuracy is not None:
        return accuracy
    return -math.inf if loss is None else -loss


def settle_models(run_path: Path) -> None:
    """After the ranks of a run have ended: whole models or none, where one was killed while it saved."""
    for name in (BEST, LAST):
        settle_folder(run_path / MODEL_FOLDER / name)


def check_scalars(config: Config) -> None:
    """Refuse `train.tensorboard` where the package is missing, before anything is launched.

    Raises:
        UsageError: it is missing.
    """
    if config.train.tensorboard and find_spec("tensorboard") is None:
        raise UsageError("train.tensorboard: true, but the package tensorboard is not installed", f"{INSTALL}.")


class Scalars:
    """Writes scalars, or nothing.

    Args:
        writer: torch's `SummaryWriter`; None writes nothing.
    """

    def __init__(self, writer: Any | None = None) -> None:
        self._writer = writer

    def row(self, row: StepRow, extra: Mapping[str, object]) -> None:
        """A step of this rank: the numbers of its row and of the further columns, as `rank_N/column`."""
        if self._writer is not None:
            self._add(f"rank_{row.rank}", row.step, {**asdict(row), **extra})

    def evaluation(self, step: int, found: Found) -> None:
        """The results of an evaluation after `step` over all ranks, as `evaluation/name`."""
        if self._writer is not None:
            self._add("evaluation", step, found)

    def _add(self, group: str, step: int, values: Mapping[str, object]) -> None:
        assert self._writer is not None
        for name, value in values.items():
            if isinstance(value, int | float) and name not in _NOT_DRAWN:
                self._writer.add_scalar(f"{group}/{name}", value, step)


@contextmanager
def scalars_of(config: Config, run: Run, *, writes: bool) -> Iterator[Scalars]:
    """Scalars in the run's folder where `train.tensorboard` asks for them and this process `writes` them."""
    if not (config.train.tensorboard and writes):
        yield Scalars()
        return
    from torch.utils.tensorboard import SummaryWriter

    with closing(SummaryWriter(str(run.path / SCALARS_FOLDER), flush_secs=FLUSH_S)) as writer:
        yield Scalars(writer)


@dataclass(eq=False)
class Epochs:
    """Adds up what the ranks of this process trained since the last epoch ended.

    Args:
        train: how long an epoch is, where there are epochs.
        sum_over_ranks: adds up vectors over all ranks.
        timed: the rank whose steps' times stand for all, which end their steps at one time.
        says: whether the line goes into the log of this process.
        file: where the lines are appended; None on ranks that do not write.
        sides: by side, columns of which the line has the mean over its ranks and steps; see `Strategy.timed`.
    """

    train: Train
    sum_over_ranks: SumOverRanks = list
    timed: int = 0
    says: bool = True
    file: Path | None = None
    sides: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = [name for names in self.sides.values() for name in names]
        self._sums = self._none()

    def _none(self) -> list[float]:
        return [0.0] * (6 + 2 * len(self._names))

    def ends(self, step: int) -> bool:
        """Whether an epoch ends with `step`."""
        return self.train.epoch_steps is not None and (step + 1) % self.train.epoch_steps == 0

    def add(self, row: StepRow, extra: Mapping[str, object]) -> None:
        """One rank's step."""
        correct = extra.get(CORRECT.name)
        counted = float(correct) if isinstance(correct, int) else math.nan
        times = (row.step_time_ms, 1.0) if row.rank == self.timed else (0.0, 0.0)
        sent = (extra.get(name) for name in self._names)
        known = [(float(ms), 1.0) if isinstance(ms, int | float) else (0.0, 0.0) for ms in sent]
        new = (row.loss * row.weight, row.weight, counted, row.local_batch, *times, *chain(*known))
        self._sums = [before + more for before, more in zip(self._sums, new, strict=True)]

    def end(self, step: int, found: Found | None) -> None:
        """Report the epoch that `step` ended, if it ends one; a collective, called after every evaluation alike.

        Args:
            step: the step after which it was evaluated.
            found: of the evaluation, where there was one.
        """
        if not self.ends(step):
            return
        loss, weight, correct, samples, ms, steps, *sent = self.sum_over_ranks(self._sums)
        self._sums = self._none()
        parts = [_scores("training", loss / weight if weight else None, correct / samples if samples else None)]
        if found is not None:
            parts.append(_scores("evaluation", found.get("loss"), found.get("accuracy")))
        if ms:
            parts.append(f"{ms / 1e3:.1f} s, {ms / steps:.1f} ms a batch, {samples / ms * 1e3:,.0f} samples/s")
        means = {
            name: total / rows for name, total, rows in zip(self._names, sent[::2], sent[1::2], strict=True) if rows
        }
        for side, names in self.sides.items():
            known = (f"{name.removesuffix('_ms')} {means[name]:.1f} ms" for name in names if name in means)
            parts.append(f"{side}: {', '.join(known)}")
        number = (step + 1) // (self.train.epoch_steps or 1)
        line = f"epoch {number} of {self.train.epochs}: {'; '.join(parts)}"
        if self.says:
            _log.info("%s", line)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _scores(what: str, loss: float | None, accuracy: float | None) -> str:
    known = "" if accuracy is None or math.isnan(accuracy) else f", accuracy {accuracy:.1%}"
    return f"{what} loss {'-' if loss is None else f'{loss:.4f}'}{known}"


def eval_batch_size(config: Config, problem: Problem, workload: Workload) -> int:
    """Samples that an evaluation runs at a time: no more than every rank can train on of the longest of them."""
    if workload.eval is None or not len(workload.eval) or problem.capacity.unlimited:
        return EVAL_BATCH
    longest = padded_width(workload.eval.lengths, decided(config.workload.pad_to_multiple_of), workload.positions)
    most = int(problem.capacity.limits(problem.workers, np.array([longest])).min())
    if problem.packed:
        most //= longest
    return max(1, min(EVAL_BATCH, most))


@dataclass(eq=False)
class Evaluator:
    """Evaluates one model on this rank's part of a fixed random sample of the held-out data.

    Args:
        config: resolved configuration; `train.eval_samples` samples over all ranks.
        workload: data and loss.
        device: where the model is.
        file: where results are appended; None on ranks that do not write.
        shard: this rank's place among those that share the work, and their number; None where it is not among them.
        sum_over_ranks: adds up vectors over those ranks.
        batch: samples that are run at a time; None is `EVAL_BATCH`.
        equal_batches: run as many batches on every rank, because every forward pass talks to all of them; what a rank
            runs for this alone does not count.
        also: called with the step of every evaluation and its results.
    """

    config: Config
    workload: Workload
    device: torch.device
    file: Path | None = None
    shard: tuple[int, int] | None = (0, 1)
    sum_over_ranks: SumOverRanks = list
    batch: int | None = None
    equal_batches: bool = False
    also: Callable[[int, Found], None] = lambda step, found: None

    def __post_init__(self) -> None:
        train = self.config.train
        self._last_step = train.warmup_steps + train.steps - 1
        self._saves = self.workload if train.save_model and isinstance(self.workload, Saves) else None
        self._best = -math.inf
        self._idle: list[IntArray] = []
        self._batches = self._choose()

    def due(self, step: int) -> bool:
        """Whether to evaluate or save after `step`."""
        return self._evaluates(step) or (self._saves is not None and step == self._last_step)

    def _evaluates(self, step: int) -> bool:
        """Every `train.eval_every` steps, after every epoch and after the last step."""
        periods = (self.config.train.eval_every, self.config.train.epoch_steps)
        return self._batches is not None and (
            step == self._last_step or any(period and (step + 1) % period == 0 for period in periods)
        )

    def after(self, step: int, strategy: Strategy, precision: Precision) -> Found | None:
        """Evaluate and save after `step` as far as that is due; what `evaluate` gives, where it was."""
        found = self.evaluate(step, strategy, precision) if self._evaluates(step) else None
        self.save_after(step, strategy, found)
        return found

    def save_after(self, step: int, strategy: Strategy, found: Found | None) -> None:
        """Save after a step that was evaluated, if it is the best so far, and after the last; a collective.

        The best has the highest accuracy where that is counted, else the lowest loss; of equals, the first is kept.
        """
        names = [LAST] if step == self._last_step else []
        if found is not None and (worth := _worth(found)) > self._best:
            self._best = worth
            names.append(BEST)
        if self._saves is not None and names and (state := strategy.full_state()) is not None:
            self._save(step, state, names)

    def interrupted(self, step: int, strategy: Strategy) -> None:
        """Save after `step`, the last one that a signal left time for, the model that this rank has whole.

        Ranks stop each after a step of its own, so that this must be no collective.
        """
        if self._saves is None or self.file is None:
            return
        state = strategy.state_alone()
        if state is None:
            _log.warning("stopped after step %d: model/%s is not kept, as it takes all ranks to give it", step, LAST)
        else:
            self._save(step, state, [LAST])

    def _save(self, step: int, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        if self._saves is None or self.file is None:
            return
        folder = self.file.parent / MODEL_FOLDER
        folder.mkdir(exist_ok=True)
        for name in names:
            self._saves.save(folder / name, state)
        _log.info("step %d: the model is saved as %s", step, " and ".join(names))

    def evaluate(self, step: int, strategy: Strategy, precision: Precision) -> Found | None:
        """What `measure` gives, appended to the file.

        Returns:
            The same on every rank; None where there is no mean loss, and nothing is written.
        """
        found = self.measure(strategy, precision)
        if found is None:
            return None
        if self.file is not None:
            with LineFile(self.file, ("step", *found)) as rows:
                rows.append((step, *found.values()))
        self.also(step, found)
        return found

    def measure(self, strategy: Strategy, precision: Precision) -> Found | None:
        """Weighted mean loss, and accuracy or perplexity where the workload counts it, over all ranks' samples.

        Samples whose weights add up to nothing have no mean, which gives None; an accuracy that is not counted is None.
        """
        with strategy.evaluating() as model:
            sums = self._local_sums(model, precision)
        loss_sum, weight, samples, correct, tokens = self.sum_over_ranks(sums)
        if weight <= 0:
            return None
        found: Found = {"loss": loss_sum / weight}
        if math.isnan(tokens):
            found["accuracy"] = None if math.isnan(correct) else correct / samples
        else:
            with np.errstate(over="ignore"):
                found |= {"perplexity": float(np.exp(loss_sum / tokens)), "tokens": int(tokens)}
        return {**found, "samples": int(samples)}

    def _choose(self) -> list[IntArray] | None:
        data, size, wanted = self.workload.eval, self.batch or EVAL_BATCH, self.config.train.eval_samples
        if data is None or len(data) == 0 or wanted == 0 or not self.config.sync.trains:
            return None
        chosen = evaluated_ids(len(data), wanted)
        if self.shard is None:
            return []
        place, number = self.shard
        mine = chosen[place::number]
        mine = mine[np.argsort(data.lengths[mine], kind="stable")]
        batches = [mine[start : start + size] for start in range(0, len(mine), size)]
        if self.equal_batches:
            most = math.ceil(len(chosen[::number]) / size)
            self._idle = [chosen[:1]] * (most - len(batches))
        return batches

    def _local_sums(self, model: nn.Module, precision: Precision) -> list[float]:
        data, multiple = self.workload.eval, decided(self.config.workload.pad_to_multiple_of)
        assert data is not None and self._batches is not None
        sums = np.zeros(5)
        model.eval()
        # Not in inference mode: what a strategy gathers in a forward pass would stay of no use to the next step.
        with torch.no_grad(), precision.autocast():
            for number, ids in enumerate((*self._batches, *self._idle)):
                batch = make_micro_batch(self.workload, data, ids, multiple, self.device)
                part = self.workload.eval_sums(model, batch.inputs)
                if number < len(self._batches):
                    counted = (part.get(key, math.nan) for key in ("correct", "tokens"))
                    sums += (part["loss_sum"], batch.weight, batch.n, *counted)
        model.train()
        return [float(value) for value in sums]

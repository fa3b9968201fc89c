"""A replica of the model on a rank, the running statistics of its batch normalisation, and its optimizer's settings."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from dynbench.config.part_rules import unequal_batch_norm
from dynbench.config.schema import Config, Train, decided
from dynbench.engine.rank.exchange import max_over_ranks
from dynbench.engine.rank.optimizer_step import CLIP_COLUMNS, Clipper, LearningRate, Precision
from dynbench.engine.rank.timers import StepTimer
from dynbench.plugins import options_of
from dynbench.plugins.datasets import SecondOptions
from dynbench.runs.records import CORRECT, Column
from dynbench.schedule.plan import Share
from dynbench.sync.base import Strategy
from dynbench.sync.synchronised import fillable
from dynbench.units import mb
from dynbench.wire.base import NullWire
from dynbench.workloads.base import BuildsEmpty, Grades, Workload
from dynbench.workloads.batches import LossPart, MicroBatch, make_micro_batch, total_correct

WIDTH = 256
"""Of the matrix that a unit is multiplied with, again and again."""
PASSES = 3
"""Products with each of the model's matrices for a token: one forward, two backward."""
_log = logging.getLogger(__name__)


class SecondWork:
    """What the second number of a sample costs in training: arithmetic that stands in for patches or tokens of its own.

    A trace says only how many units there are. A unit takes as long as a token does in the model's matrices, forward
    and backward; it trains nothing, so that losses and gradients are those of the tokens alone.

    Args:
        model: whose matrices say how much; embeddings, which multiply nothing, are left out.
        device: where it is done.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        embedded = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
        matrices = sum(each.numel() for each in model.parameters() if each.dim() == 2 and id(each) not in embedded)
        self.products = max(1, round(PASSES * matrices / WIDTH**2))
        self._matrix = torch.eye(WIDTH, device=device)

    @torch.no_grad()
    def run(self, units: int) -> None:
        """The work of so many units, at least one."""
        rows = self._matrix.new_ones(units, WIDTH)
        for _ in range(self.products):
            rows = rows @ self._matrix


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of a model."""
    normed = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [each for module in normed for each in (module.running_mean, module.running_var) if each is not None]


def average_statistics(
    model: nn.Module, samples: float, sum_over_ranks: Callable[[Sequence[float]], list[float]]
) -> None:
    """Give every rank the mean of all ranks' running statistics; a collective where the model has any.

    Args:
        model: changed in place.
        samples: what this rank's statistics count: samples that it has trained on since they were last made one; a
            rank that trains nothing receives those of the others.
        sum_over_ranks: adds up vectors over all ranks.
    """
    statistics = running_statistics(model)
    if not statistics:
        return
    total, *sums = sum_over_ranks([samples, *(samples * _flat(statistics)).tolist()])
    if total:
        _set(statistics, torch.tensor(sums, dtype=torch.float64) / total)


def _flat(statistics: Sequence[Tensor]) -> Tensor:
    """A copy of them all in one vector of double precision."""
    return torch.cat([statistic.detach().flatten().double() for statistic in statistics] or [torch.empty(0)])


def _set(statistics: Sequence[Tensor], flat: Tensor) -> None:
    parts = torch.split(flat, [statistic.numel() for statistic in statistics])
    with torch.no_grad():
        for statistic, part in zip(statistics, parts, strict=True):
            statistic.copy_(part.view_as(statistic))


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Running statistics stay as they are, also in training mode, in which batches are normalised by their own."""
    tracking = [each for each in model.modules() if isinstance(each, _BatchNorm) and each.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def warn_of_unequal_numbers(config: Config, model: nn.Module) -> None:
    """Warn of a model of the user's own code that normalises over unequal numbers; of ours the configuration tells."""
    policy = config.schedule.policy_name
    if config.workload.runs_own_code and policy != "static" and any(isinstance(m, _BatchNorm) for m in model.modules()):
        _log.warning("%s", unequal_batch_norm(policy, f"the model of {config.workload.name}"))


class PlayedStatistics:
    """Running statistics of ranks that one process plays in turn, each of its own samples, as real ranks have them.

    Args:
        model: what the ranks share; holds the statistics of the rank that plays.
        ranks: their number.
    """

    def __init__(self, model: nn.Module, ranks: int) -> None:
        self._shared = running_statistics(model)
        self._own = [_flat(self._shared)] * ranks
        self._samples = [0.0] * ranks

    def begin(self, rank: int) -> None:
        """From here on, the model has this rank's."""
        _set(self._shared, self._own[rank])

    def end(self, rank: int, samples: float) -> None:
        """What this rank has, after it has trained on so many samples more."""
        self._own[rank] = _flat(self._shared)
        self._samples[rank] += samples

    def average(self) -> None:
        """Give every rank the mean of all, weighted by the samples since the last time, as `average_statistics`."""
        if total := sum(self._samples):
            weighted = [samples * own for samples, own in zip(self._samples, self._own, strict=True)]
            _set(self._shared, torch.stack(weighted).sum(0) / total)
            self._own = [_flat(self._shared)] * len(self._own)
            self._samples = [0.0] * len(self._own)


class Replica:
    """The model of one rank under a synchronisation strategy.

    Args:
        config: resolved configuration.
        workload: data, model and loss.
        device: where the model lives.
        timer: collects the phases.
        strategy: a new one; the replica's caller closes it.
        slowdown: this rank's compute is stretched by this factor.
        model: of the workload; None builds it.
    """

    def __init__(
        self,
        config: Config,
        workload: Workload,
        device: torch.device,
        timer: StepTimer,
        strategy: Strategy,
        slowdown: float = 1.0,
        model: nn.Module | None = None,
    ) -> None:
        self.stepping = False
        """In an optimizer's step, or one that was never finished: weights of neither the step before nor the next."""
        self._workload = workload
        self._grades = workload if isinstance(workload, Grades) else None
        self._trained = 0
        self.device = device
        self._timer = timer
        self._slowdown = slowdown
        self._pad_to_multiple_of = decided(config.workload.pad_to_multiple_of)
        self.model = (_model_for(strategy, workload, config) if model is None else model).train()
        self.strategy = strategy
        second = options_of(config.workload, SecondOptions).second_column is not None
        self._second_work = SecondWork(self.model, device) if second else None
        strategy.waiting = timer.waiting
        module = strategy.wrap(self.model, device, self._on_ready)
        limit = config.train.max_grad_norm
        self.clipper = None if limit is None else Clipper(limit, strategy.gradient_norm)
        self.precision = Precision(
            config.train.precision,
            device,
            max_over_ranks if _has_to_agree(strategy) else None,
            None if self.clipper is None else self.clipper.clip,
        )
        self.optimizer = strategy.build_optimizer(
            module.parameters(), lambda parameters: build_optimizer(parameters, config.train)
        )
        self._rate = LearningRate(self.optimizer, config.train)

    def load(self, share: Share) -> list[MicroBatch]:
        """The micro-batches of a share, padded or packed, and moved to the device."""
        workload, multiple = self._workload, self._pad_to_multiple_of
        return [make_micro_batch(workload, workload.train, ids, multiple, self.device) for ids in share]

    def weight(self, share: Share) -> float:
        """The weight of a share's samples in the loss."""
        return sum(self._workload.train.weight(ids) for ids in share)

    def compute(self, batches: Sequence[MicroBatch], scale: Callable[[], float]) -> list[LossPart]:
        """Forward and backward of all micro-batches, then synchronisation; a rank that has none serves the others.

        A micro-batch's loss, summed over its samples, is multiplied by `scale()`, which is called after the first
        forward pass, so that what it waits for overlaps with it; one that only repeats is multiplied by 0, and leaves
        the running statistics of batch normalisation as they are.
        """
        parts = []
        self.strategy.wire.weigh(sum(batch.weight for batch in batches if not batch.repeats))
        if not batches:
            with self._timer.device("sync"), self._telling_why():
                self.strategy.serve()
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            with nullcontext() if last else self.strategy.accumulating():
                counted = statistics_kept(self.model) if batch.repeats else nullcontext()
                with counted, self._timer.device("forward"), self.precision.autocast():
                    loss, correct = self._loss(batch)
                with self._timer.device("sync"):
                    factor = 0.0 if batch.repeats else scale()
                scaled = loss * factor
                with self._timer.backward(), self._telling_why():
                    self.precision.backward(scaled)
                    if last:
                        self.strategy.finish()
            if not batch.repeats:
                self._trained += batch.n
                done = LossPart(batch.n, batch.weight, batch.width, batch.tokens, loss.detach(), correct)
                parts.append(done)
        return parts

    def take_trained(self) -> int:
        """Samples that this rank has trained on since the last call."""
        taken, self._trained = self._trained, 0
        return taken

    def _loss(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """The summed loss of a micro-batch, and how many of its samples were right where that is counted.

        What its second number stands for is worked off first.
        """
        if self._second_work is not None and batch.second:
            self._second_work.run(batch.second)
        if self._grades is not None:
            return self._grades.graded_loss(self.strategy.module, batch.inputs)
        return self._workload.loss(self.strategy.module, batch.inputs), None

    def update(self, stepped: Callable[[], None] = lambda: None) -> None:
        """One optimizer step with its learning rate; gradients are cleared, once `stepped` has been called."""
        self.stepping = True
        self._rate.advance()
        self.strategy.step(self.optimizer, self.precision)
        self.stepping = False
        stepped()
        self.strategy.clear_gradients(self.optimizer)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it adds to a rank's rows."""
        counted = () if self._grades is None else (CORRECT,)
        return (*counted, *(() if self.clipper is None else CLIP_COLUMNS))

    def row(self) -> dict[str, object]:
        """The values of those that are the same on all ranks, for the step that ended; waits for the device."""
        return {} if self.clipper is None else self.clipper.row()

    def counted(self, parts: Sequence[LossPart]) -> dict[str, object]:
        """The values of the others, for a rank that ran `parts`; waits for the device."""
        return {} if self._grades is None else {CORRECT.name: total_correct(parts)}

    @contextmanager
    def _telling_why(self) -> Iterator[None]:
        """Raise what went wrong on the wire itself, in place of what torch makes of it."""
        try:
            yield
        except RuntimeError as error:
            if (cause := self.strategy.wire.failure) is not None and cause is not error:
                raise cause from error
            raise

    def _on_ready(self) -> None:
        if self._slowdown > 1:
            time.sleep((self._slowdown - 1) * self._timer.compute_ms() / 1e3)
        self._timer.note_ready()


def _has_to_agree(strategy: Strategy) -> bool:
    """Whether ranks ask each other if gradients overflowed: not where nothing is sent, or each steps by itself."""
    alone = strategy.steps_apart or isinstance(strategy.wire, NullWire)
    return not (strategy.equal_gradients or alone)


def _model_for(strategy: Strategy, workload: Workload, config: Config) -> nn.Module:
    """The model, without values where the strategy gives this rank those of the first and nothing else lacks any."""
    filled = strategy.fills_models and not isinstance(strategy.wire, NullWire) and strategy.wire.rank > 0
    if filled and isinstance(workload, BuildsEmpty) and fillable(model := workload.build_empty_model()):
        return model
    return workload.build_model(config.train.seed)


def build_optimizer(parameters: Iterable[nn.Parameter], settings: Train) -> Optimizer:
    """The optimizer of `train.optimizer`, with one fused kernel over all parameters."""
    assert settings.learning_rate != "auto", "resolved before the launch"
    common: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, "fused": True}
    if settings.optimizer == "sgd":
        sgd = torch.optim.SGD(parameters, momentum=settings.momentum, **common)
        if settings.precision == "fp16" and settings.momentum:
            # torch's fused kernel leaves the momentum of a first step that overflows as it found that memory
            for parameter in (each for group in sgd.param_groups for each in group["params"]):
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    return (torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam)(parameters, **common)


def seed_dropout(seed: int, rank: int, step: int, device: torch.device) -> None:
    """Give this rank and step a random stream of its own, the same whichever process plays the rank.

    Of torch, only the generator of `device` is seeded: `torch.manual_seed` visits every backend and is slow where one
    is absent. Python's and numpy's are for code of the user's own.
    """
    mixed = int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0] >> 1)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # the global one
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
    else:
        torch.default_generator.manual_seed(mixed)


def gradient_megabytes(model: nn.Module) -> float:
    """Size of all gradients in MB (1e6 bytes)."""
    parameters = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return mb(sum(parameter.numel() * parameter.element_size() for parameter in parameters))

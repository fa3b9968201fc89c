"""One rank's model and what is done with it in a step: load, forward and backward, update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.config.schema import Config, Train
from dynbench.engine.rank.exchange import max_over_ranks
from dynbench.engine.rank.precision import Precision
from dynbench.engine.rank.timers import StepTimer
from dynbench.schedule.plan import IntArray, Share
from dynbench.sync.base import Strategy
from dynbench.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One padded batch on the device."""

    n: int
    """Samples."""
    inputs: dict[str, Tensor]
    repeats: bool = False
    """Run once more with weight 0, because other ranks have more micro-batches."""


@dataclass(frozen=True, slots=True)
class LossPart:
    """A micro-batch's loss."""

    n: int
    mean: Tensor
    """Mean loss over its samples, a detached scalar."""


class Replica:
    """The model of one rank under a synchronisation strategy.

    Args:
        config: resolved configuration.
        workload: data, model and loss.
        device: where the model lives.
        timer: collects the phases.
        strategy: a new one; the replica's caller closes it.
        slowdown: this rank's compute is stretched by this factor.
    """

    def __init__(
        self,
        config: Config,
        workload: Workload,
        device: torch.device,
        timer: StepTimer,
        strategy: Strategy,
        slowdown: float = 1.0,
    ) -> None:
        assert isinstance(config.workload.pad_to_multiple_of, int), "resolved before the launch"
        self._workload = workload
        self.device = device
        self._timer = timer
        self._slowdown = slowdown
        self._pad_to_multiple_of = config.workload.pad_to_multiple_of
        self._backward_start: object = None
        self.model = workload.build_model(config.train.seed).train()
        self.strategy = strategy
        module = strategy.wrap(self.model, device, self._on_ready)
        self.precision = Precision(config.train.precision, device, None if strategy.equal_gradients else max_over_ranks)
        self.optimizer = strategy.build_optimizer(
            module.parameters(), lambda parameters: build_optimizer(parameters, config.train)
        )

    def load(self, share: Share) -> list[MicroBatch]:
        """The micro-batches of a share, padded and moved to the device."""
        batches = []
        for ids in share:
            inputs = self._workload.collate(self._workload.train, ids, self._pad_to_multiple_of)
            batches.append(MicroBatch(len(ids), {name: tensor.to(self.device) for name, tensor in inputs.items()}))
        return batches

    def compute(self, batches: Sequence[MicroBatch], per_sample_weight: Callable[[], float]) -> list[LossPart]:
        """Forward and backward of all micro-batches, then synchronisation.

        A micro-batch's mean loss over n samples is multiplied by n * `per_sample_weight()`, which is asked for after
        the first forward pass, so that what it waits for overlaps with it.
        """
        parts, clock = [], self._timer.clock
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            with nullcontext() if last else self.strategy.accumulating():
                with self._timer.device("forward"), self.precision.autocast():
                    loss = self._workload.loss(self.strategy.module, batch.inputs)
                weighted = loss * (0.0 if batch.repeats else batch.n * per_sample_weight())
                self._backward_start = clock.mark()
                with self._telling_why():
                    self.precision.backward(weighted)
                    if last:
                        self.strategy.finish()
                end = clock.mark()
            ready = self._timer.take_ready(default=end)
            self._timer.add("backward", self._backward_start, ready)
            self._timer.add("sync", ready, end)
            if not batch.repeats:
                parts.append(LossPart(batch.n, loss.detach()))
        return parts

    def update(self) -> None:
        """One optimizer step; gradients are cleared."""
        self.strategy.step(self.optimizer, self.precision)
        self.optimizer.zero_grad(set_to_none=not self.strategy.keeps_gradients)

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
            time.sleep((self._slowdown - 1) * self._timer.compute_ms(self._backward_start) / 1e3)
        self._timer.note_ready()


def build_optimizer(parameters: Iterable[nn.Parameter], settings: Train) -> Optimizer:
    """AdamW with one fused kernel over all parameters."""
    assert settings.learning_rate != "auto", "resolved before the launch"
    return torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)


def evened_out(batches: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
    """Micro-batches up to `count`: the smallest again and again, with weight 0."""
    smallest = min(batches, key=lambda batch: sum(tensor.numel() for tensor in batch.inputs.values()))
    return [*batches, *[replace(smallest, repeats=True)] * (count - len(batches))]


def mean_loss(parts: Sequence[LossPart]) -> float:
    """Mean loss over a share's samples, unweighted; waits for the device."""
    return sum(part.n * part.mean.item() for part in parts) / sum(part.n for part in parts)


def seed_dropout(seed: int, rank: int, step: int, device: torch.device) -> None:
    """Give this rank and step a random stream of its own, the same whichever process plays the rank.

    Only the generator of `device` is seeded: `torch.manual_seed` visits every backend and is slow where one is absent.
    """
    mixed = int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0] >> 1)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
    else:
        torch.default_generator.manual_seed(mixed)


def padded_tokens(share: Share, padded_lengths: IntArray) -> tuple[int, int]:
    """Padded tokens of a share, summed over its micro-batches, and its longest padded length."""
    widths = [int(padded_lengths[ids].max()) for ids in share]
    return sum(len(ids) * width for ids, width in zip(share, widths, strict=True)), max(widths)

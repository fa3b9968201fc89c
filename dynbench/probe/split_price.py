"""What a split costs: the step of two micro-batches against one, as training takes it, under its synchronisation.

A bare model does not tell. Under DistributedDataParallel the first micro-batch's gradients are kept apart from the
buckets, so that a further one adds to them and copies them, on all ranks at once, and leaves less of the backward pass
for the all-reduce to hide behind.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing

import numpy as np
import torch

from dynbench.config.schema import Config
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.wiring import build_strategy
from dynbench.probe.shapes import shaped_batch
from dynbench.workloads.base import Workload

SETTLING = 3
"""Steps of a block before those that count."""


class SplitStep:
    """Training steps whose share is one micro-batch, or the same samples in two.

    Args:
        config: resolved settings.
        workload: where the model and the loss come from.
        device: where to run.
    """

    def __init__(self, config: Config, workload: Workload, device: torch.device) -> None:
        self._workload = workload
        self._timer = StepTimer(device)
        self._replica = Replica(config, workload, device, self._timer, build_strategy(config, device))

    def close(self) -> None:
        """Let go of the process group."""
        self._replica.strategy.close()

    def ms(self, n: int, length: int, micro_batches: int) -> float:
        """Milliseconds of a step of so many micro-batches of `n` samples of `length` tokens, data left out."""
        batch = shaped_batch(self._workload, n, length, self._replica.device)
        self._timer.clock.synchronise()
        start = time.perf_counter()
        self._replica.compute([batch] * micro_batches, lambda: 1 / (batch.weight * micro_batches))
        self._replica.update()
        self._timer.clock.synchronise()
        self._timer.take_phases()
        self._replica.strategy.wire.take()
        return (time.perf_counter() - start) * 1e3

    def price(self, n: int, length: int, repeats: int) -> float:
        """Milliseconds that a step of two micro-batches of `n` samples takes longer than one of `2 * n`.

        The median of pairs, timed in blocks of one kind in ABBA order: a step pays for what the one before left in the
        allocator, so that kinds that take turns look alike, and a drift of the machine falls on both. Lengths change
        within a block, as they do in training.

        Args:
            n: samples of one of two micro-batches.
            length: longest that is tried, padded tokens.
            repeats: steps of a block that count.
        """
        known = self._workload.train.lengths
        lengths = np.minimum(np.random.default_rng(0).choice(known, size=repeats), length).tolist()

        def block(micro_batches: int) -> list[float]:
            size = 2 * n // micro_batches
            times = [self.ms(size, drawn, micro_batches) for drawn in (*lengths[:SETTLING], *lengths)]
            return times[SETTLING:]

        one, two, two_again, one_again = (block(micro_batches) for micro_batches in (1, 2, 2, 1))
        return statistics.median(b - a for a, b in zip(one + one_again, two + two_again, strict=True))


def split_price_ms(config: Config, workload: Workload, device: torch.device, shape: tuple[int, int, int]) -> float:
    """`SplitStep.price` of (n, length, repeats); the model and its buckets are gone afterwards."""
    with closing(SplitStep(config, workload, device)) as step:
        return step.price(*shape)

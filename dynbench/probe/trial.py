"""A trial of a micro-batch, and its rehearsal."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.futures import Future

from dynbench.compress.base import Compressor
from dynbench.config.schema import Config
from dynbench.engine.failure import is_out_of_memory
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.compressor_options import CompressionOptions
from dynbench.plugins.strategies import DilocoOptions
from dynbench.probe.limits import limit_process, shaped_batch
from dynbench.sync.base import Strategy
from dynbench.sync.local import Local
from dynbench.units import mb
from dynbench.wire.channel import Channel
from dynbench.wire.null import NullWire
from dynbench.wire.segment import Segment
from dynbench.workloads.base import Workload

STEPS_PER_TRIAL = 2
"""The first step allocates the optimizer's state only after its activations are gone; the second holds both."""


class RehearsalWire(NullWire):
    """A wire to ranks that are not there, which have what this rank has.

    Args:
        rank: this rank.
        world_size: their number (G).
        group: of as many ranks, as `silent_group`.
        compressor: of gradients; of every parameter it takes one, to hold what it keeps of it.
    """

    def __init__(
        self, rank: int, world_size: int, group: dist.ProcessGroup, compressor: Compressor | None = None
    ) -> None:
        super().__init__(rank, world_size, group, echoes=True)
        self._compressor = compressor
        self._kept: set[str] = set()
        """Parameters of which it has had a gradient."""

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """This rank's own gradient, of a compressor's first time what it makes of it."""
        self._compressed(flat, segments, lambda compressor, channel: compressor.mean(channel, flat, segments))
        return super().mean(flat, segments)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """Likewise this rank's part of it."""
        self._compressed(
            flat, segments, lambda compressor, channel: compressor.mean_shard(channel, flat, segments, shard)
        )
        return super().mean_shard(flat, segments, shard)

    @torch.no_grad()
    def _compressed(
        self, flat: Tensor, segments: Sequence[Segment], work: Callable[[Compressor, Channel], None]
    ) -> None:
        names = {segment.name for segment in segments}
        if self._compressor is not None and not names <= self._kept:
            work(self._compressor, Channel(self.group, flat.device))
            flat.nan_to_num_(0.0, 0.0, 0.0)  # what nobody sent may be anything
            self._kept |= names


def rehearsed(config: Config, worker: int, workers: int, group: dist.ProcessGroup) -> Strategy:
    """The strategy `sync.name` of one of several workers.

    Args:
        config: resolved settings.
        worker: its number among those that train, from 0.
        workers: their number (G).
        group: of `silent_group`.
    """
    entry, sync = STRATEGIES.find(config.sync.name), config.sync
    if entry.reads("inner_steps"):  # so that a step holds what the one holds in which ranks meet
        sync = sync.model_copy(update={"inner_steps": 1 + options_of(sync, DilocoOptions).overlap_steps})
    wire = RehearsalWire(entry.servers + worker, entry.servers + workers, group, _compressor(config))
    strategy: Strategy = entry.load()(sync, wire)
    return strategy


def _compressor(config: Config) -> Compressor | None:
    """The compressor of a step in which it compresses; None where it keeps nothing from one to the next."""
    entry, settings = COMPRESSORS.find(config.compress.name), config.compress
    if entry.reads("start_step") and options_of(settings, CompressionOptions).start_step:
        settings = settings.model_copy(update={"start_step": 0})
    found: Compressor | None = entry.load()(settings)
    return None if found is None or type(found).state_dict is Compressor.state_dict else found


class TrialStep:
    """A rank's model under its strategy, which sends nothing, and a way to run one step of any shape.

    Args:
        config: resolved settings.
        workload: where the model and the loss come from.
        device: where to run.
        limit_bytes: most memory of this process that may be resident in a trial; None where the device has a limit of
            its own, or nothing is tried.
        build: makes the strategy; None is that of virtual ranks.
    """

    def __init__(
        self,
        config: Config,
        workload: Workload,
        device: torch.device,
        limit_bytes: int | None = None,
        build: Callable[[], Strategy] | None = None,
    ) -> None:
        self.device = device
        self._config = config
        self._limit_bytes = limit_bytes
        self._workload = workload
        self._build: Callable[[], Strategy] = build or Local
        self._replica = self._built()
        parameters = self._replica.strategy.model.parameters()
        self.gradient_numel = sum(each.numel() for each in parameters if each.requires_grad)
        self.memory = memory_meter(device)

    @property
    def limit_mb(self) -> float | None:
        """Most memory of this process in MB."""
        return None if self._limit_bytes is None else mb(self._limit_bytes)

    def _built(self, model: nn.Module | None = None) -> Replica:
        self._timer = StepTimer(self.device)
        return Replica(self._config, self._workload, self.device, self._timer, self._build(), model=model)

    def step(self, n: int, length: int, most: bool = False) -> None:
        """Forward, backward and optimizer step of one micro-batch (see `shaped`); ends with the device idle."""
        batch = shaped_batch(self._workload, n, length, self.device, most)
        self._replica.compute([batch], lambda: 1 / batch.weight)
        self._replica.update()
        self._replica.strategy.drain()
        self._timer.clock.synchronise()
        self._timer.take_phases()
        self._replica.strategy.wire.take()

    def fits(self, n: int, length: int, room: float = 1.0) -> tuple[bool, float | None]:
        """Whether two steps pass within the limit, and their peak in MB where they were not stopped.

        They are stopped at `room` times the limit.

        Recovery is outside the `except` clause: inside it the traceback keeps the failed step's tensors alive.
        """
        if self._limit_bytes is not None:
            limit_process(int(room * self._limit_bytes))
        self.memory.reset()
        failed = False
        try:
            for _ in range(STEPS_PER_TRIAL):
                self.step(n, length, most=True)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        if failed:
            self.recover()
            return False, None
        peak = self.memory.peak_mb()
        return self.limit_mb is None or peak <= self.limit_mb, peak

    def recover(self) -> None:
        """Drop what a failed step left behind: a strategy that it stopped half way, gradients, optimizer state.

        The model is taken up again, unless the strategy has cut its parameters.
        """
        model, strategy = self._replica.strategy.model, self._replica.strategy
        del self._replica
        strategy.close()
        cut = any(isinstance(each, DTensor) for each in model.parameters())
        model.zero_grad(set_to_none=True)
        kept = None if cut else model
        del model, strategy
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._replica = self._built(kept)

    def timed(self, n: int, length: int, repeats: int) -> list[float]:
        """Milliseconds of `repeats` steps after one to warm up."""
        self.step(n, length)
        return [self._ms(n, length) for _ in range(repeats)]

    def _ms(self, n: int, length: int) -> float:
        start = time.perf_counter()
        self.step(n, length)
        return (time.perf_counter() - start) * 1e3

    def reduce(self, repeats: int) -> float:
        """Median milliseconds of an all-reduce of the gradient, in one message."""
        gradient = torch.zeros(self.gradient_numel, device=self.device)
        return statistics.median([self._reduced_ms(gradient) for _ in range(repeats)])

    def meet(self) -> None:
        """Return when every rank has called this."""
        self._reduced_ms(torch.zeros(1, device=self.device))

    def _reduced_ms(self, tensor: torch.Tensor) -> float:
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) * 1e3

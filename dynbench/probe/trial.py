"""A trial process: it builds a rank's step once, then answers requests until its connection closes.

What it tries: a micro-batch, within a limit of memory; the rehearsal of a strategy whose other ranks are not there; and
the price of a further micro-batch. A bare model does not show that price. Under DistributedDataParallel the first
micro-batch's gradients are kept apart from the buckets, so that a further one adds to them and copies them, on all
ranks at once, and leaves less of the backward pass for the all-reduce to hide behind.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.futures import Future

from dynbench.compress.base import Compressor
from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config, decided
from dynbench.engine.failure import is_out_of_memory, lasting_fault
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.memory_limit import limit_process, resident_bytes
from dynbench.engine.rank.rank_process import die_with_parent
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.kernels.packed_attention import most_demanding
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.compressors import CompressionOptions
from dynbench.plugins.strategies import DilocoOptions
from dynbench.probe.children import RESERVE
from dynbench.runs.run import Run
from dynbench.sync.base import Local, Strategy
from dynbench.units import mb
from dynbench.wire.base import NullWire, null_group
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment
from dynbench.workloads.base import Workload, packs
from dynbench.workloads.batches import MicroBatch, make_micro_batch
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.registry import build_workload, import_model_code

STEPS_PER_TRIAL = 2
"""The first step allocates the optimizer's state only after its activations are gone; the second holds both."""
SETTLING = 3
"""Steps of a block before those that count."""


def shaped(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> TokenisedData:
    """`n` samples, one token short of `length`; packed, of `length`.

    Short, so that padding to `length` leaves a mask: without padding the attention drops it and takes a kernel that
    training hardly ever gets.

    Args:
        workload: whose tokens and labels they have.
        n: how many.
        length: tokens.
        device: where they will be run.
        most: of a packed row, other lengths that need more memory, if there are any; as many tokens and as long.
    """
    lengths = [max(1, length - 1)] * n
    if packs(workload):
        lengths = list(most_demanding(n, length, device)) if most else [length] * n
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    total, count = int(offsets[-1]), len(lengths)
    tokens = np.resize(workload.train.tokens[:total], total)
    labels, weights = np.resize(workload.train.labels, count), workload.train.weights
    return TokenisedData(
        tokens,
        offsets,
        labels,
        "probe",
        weights=None if weights is None else np.resize(weights[weights > 0], count),
    )


def shaped_batch(workload: Workload, n: int, length: int, device: torch.device, most: bool = False) -> MicroBatch:
    """`shaped` samples as one micro-batch, padded to `length`, or as one packed row."""
    data = shaped(workload, n, length, device, most)
    return make_micro_batch(workload, data, np.arange(len(data), dtype=np.int64), length, device)


class RehearsalWire(NullWire):
    """A wire to ranks that are not there, which have what this rank has.

    Args:
        rank: this rank.
        world_size: their number (G).
        group: of as many ranks, as `null_group`.
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
        group: of `null_group`.
    """
    entry, sync = STRATEGIES.find(config.sync.name), config.sync
    if entry.reads("inner_steps"):  # so that a step holds what the one holds in which ranks synchronise
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


@dataclass(eq=False)
class TrialStep:
    """A rank's model under its strategy, and a way to run one step of any shape.

    Args:
        config: resolved settings.
        workload: where the model and the loss come from.
        device: where to run.
        limit_bytes: most memory of this process that may be resident in a trial; None where the device has a limit of
            its own, or nothing is tried.
        build: makes the strategy, which sends nothing but where splits are timed.
    """

    config: Config
    workload: Workload
    device: torch.device
    limit_bytes: int | None = None
    build: Callable[[], Strategy] = Local

    def __post_init__(self) -> None:
        self._replica = self._built()
        parameters = self._replica.strategy.model.parameters()
        self.gradient_numel = sum(each.numel() for each in parameters if each.requires_grad)
        self.memory = memory_meter(self.device)

    @property
    def limit_mb(self) -> float | None:
        """Most memory of this process in MB."""
        return None if self.limit_bytes is None else mb(self.limit_bytes)

    def _built(self, model: nn.Module | None = None) -> Replica:
        self._timer = StepTimer(self.device)
        return Replica(self.config, self.workload, self.device, self._timer, self.build(), model=model)

    def step(self, n: int, length: int, most: bool = False) -> None:
        """Forward, backward and optimizer step of one micro-batch (see `shaped`); ends with the device idle."""
        self._run(shaped_batch(self.workload, n, length, self.device, most), drain=True)

    def _run(self, batch: MicroBatch, micro_batches: int = 1, *, drain: bool = False) -> None:
        """A step of so many micro-batches like this one."""
        self._replica.compute([batch] * micro_batches, lambda: 1 / (batch.weight * micro_batches))
        self._replica.update()
        if drain:
            self._replica.strategy.drain()
        self._timer.clock.synchronise()
        self._timer.take_phases()
        self._replica.strategy.wire.take()

    def fits(self, n: int, length: int, room: float = 1.0) -> tuple[bool, float | None]:
        """Whether two steps pass within the limit, and their peak in MB where they were not stopped.

        They are stopped at `room` times the limit.

        Recovery is outside the `except` clause: inside it the traceback keeps the failed step's tensors alive.
        """
        if self.limit_bytes is not None:
            limit_process(int(room * self.limit_bytes))
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
        peak = self.memory.now().peak_mb
        return self.limit_mb is None or (peak or 0.0) <= self.limit_mb, peak

    def recover(self) -> None:
        """Drop what a failed step left behind: a strategy that it stopped half way, gradients, optimizer state.

        The model is taken up again, unless the strategy has cut its parameters.
        """
        model, strategy = self._replica.strategy.model, self._replica.strategy
        del self._replica
        strategy.close()
        cut = any(isinstance(each, DTensor) for each in model.parameters())
        model.zero_grad(set_to_none=True)
        whole = None if cut else model
        del model, strategy
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._replica = self._built(whole)

    def _timed_ms(self, work: Callable[[], object]) -> float:
        """Milliseconds until the device has done some work."""
        self._timer.clock.synchronise()
        start = time.perf_counter()
        work()
        self._timer.clock.synchronise()
        return (time.perf_counter() - start) * 1e3

    def timed(self, n: int, length: int, repeats: int) -> list[float]:
        """Milliseconds of `repeats` steps after one to warm up."""
        self.step(n, length)
        return [self._timed_ms(lambda: self.step(n, length)) for _ in range(repeats)]

    def split_ms(self, n: int, length: int, micro_batches: int) -> float:
        """Milliseconds of a step of so many micro-batches of `n` samples of `length` tokens, data left out."""
        batch = shaped_batch(self.workload, n, length, self.device)
        return self._timed_ms(lambda: self._run(batch, micro_batches))

    def split_price_ms(self, n: int, length: int, repeats: int) -> float:
        """Milliseconds that a step of two micro-batches of `n` samples takes longer than one of `2 * n`.

        The median of pairs, timed in blocks of one kind in ABBA order: a step pays for what the one before left in the
        allocator, so that kinds that take turns look alike, and a drift of the machine falls on both. Lengths change
        within a block, as they do in training.

        Args:
            n: samples of one of two micro-batches.
            length: longest that is tried, padded tokens.
            repeats: steps of a block that count.
        """
        known = self.workload.train.lengths
        lengths = np.minimum(np.random.default_rng(0).choice(known, size=repeats), length).tolist()

        def block(micro_batches: int) -> list[float]:
            size = 2 * n // micro_batches
            times = [self.split_ms(size, drawn, micro_batches) for drawn in (*lengths[:SETTLING], *lengths)]
            return times[SETTLING:]

        one, two, two_again, one_again = (block(micro_batches) for micro_batches in (1, 2, 2, 1))
        return statistics.median(b - a for a, b in zip(one + one_again, two + two_again, strict=True))

    def close(self) -> None:
        """Let go of the process group."""
        self._replica.strategy.close()

    def reduce(self, repeats: int) -> float:
        """Median milliseconds of an all-reduce of the gradient, in one message."""
        gradient = torch.zeros(self.gradient_numel, device=self.device)
        return statistics.median([self._reduced_ms(gradient) for _ in range(repeats)])

    def meet(self) -> None:
        """Return when every rank has called this."""
        self._reduced_ms(torch.zeros(1, device=self.device))

    def _reduced_ms(self, tensor: Tensor) -> float:
        dist.barrier()
        return self._timed_ms(lambda: dist.all_reduce(tensor))


def main() -> None:
    """Entry point; its arguments are the specification and the descriptor of its connection."""
    spec, connection = json.loads(sys.argv[1]), Connection(int(sys.argv[2]))
    die_with_parent(spec["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = Run(Path(spec["run"]))
    try:
        with suppress(EOFError):
            _serve(spec, run.config(), connection)
    except Exception as error:  # whatever it is, its cause is reported and the process ends without waiting for others
        traceback.print_exc()
        sys.stderr.flush()
        if message := lasting_fault(error, run):
            connection.send({"fault": message})
        os._exit(1)  # the interpreter's own end may wait for a collective of ranks that are still in it
    os._exit(0)


def _serve(spec: Mapping[str, Any], config: Config, connection: Connection) -> None:
    """Build the step, then answer.

    Raises:
        EOFError: the connection was closed.
    """
    torch.set_num_threads(decided(config.launch.threads))
    gpu = ranks_of(config, 0).servers + spec["rank"]
    device = torch.device("cuda", gpu) if config.launch.device == "cuda" else torch.device("cpu")
    workload = build_workload(config)
    import_model_code(config.workload)  # else under the limit, where an import fails in ways of its own
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=spec["rendezvous"],
        rank=spec["rank"],
        world_size=spec["world_size"],
        timeout=timedelta(seconds=config.launch.timeout_s),
    )
    if spec["splits"]:
        _limit(spec["memory_limit_bytes"], config, device)
        connection.send({"ready": True, "gradient_bytes": 0})
        while True:
            request = connection.recv()
            # A new one for each request: nothing of an earlier one may be left beside it.
            with closing(TrialStep(config, workload, device, build=partial(build_strategy, config, device))) as split:
                ms = split.split_price_ms(request["n"], request["length"], request["repeats"])
            del split
            connection.send({"ms": ms})
    build: Callable[[], Strategy] = Local
    if config.launch.launcher != "virtual":
        STRATEGIES.find(config.sync.name).load()  # before the limit, as the code of models
        build = partial(rehearsed, config, spec["rank"], spec["world_size"], null_group())
    step, message = None, ""
    try:
        _limit(spec["memory_limit_bytes"], config, device)
        step = TrialStep(config, workload, device, spec["memory_limit_bytes"], build)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = f"the model and its optimizer do not fit: the process holds {mb(resident_bytes()):.0f} MB before them"
    if step is None:
        connection.send({"ready": False, "message": message})
        return
    connection.send({"ready": True, "gradient_bytes": 4 * step.gradient_numel})
    while True:
        connection.send(_answer(step, connection.recv()))


def _limit(limit_bytes: int | None, config: Config, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(config.probe.memory_fraction, device)
    elif limit_bytes is not None:
        limit_process(limit_bytes)


def _answer(step: TrialStep, request: Mapping[str, Any]) -> dict[str, object]:
    kind = request["op"]
    if kind == "trial":
        fits, peak = step.fits(request["n"], request["length"]) if request["n"] else (True, None)
        return {"fits": fits, "peak_mem_mb": peak}
    if kind == "time":
        return {"ms": step.timed(request["n"], request["length"], request["repeats"])}
    if kind == "reduce":
        return {"ms": step.reduce(request["repeats"])}
    if kind == "meet":
        step.meet()
        return {}
    return _soak(step, request["micro_batches"])


def _soak(step: TrialStep, micro_batches: list[tuple[int, int]]) -> dict[str, object]:
    """Run every micro-batch of the plan in turn; the first for which memory is refused ends it.

    One that passes above the limit is a failure too, but it and what follows show how far above it goes: for that
    there is what the default limit leaves alone. The peak of one that is stopped is at least as much.
    """
    room = 1 + RESERVE
    peak, reserved = 0.0, 0.0
    first_failure: dict[str, object] = {}
    for n, length in micro_batches:
        fits, now = step.fits(n, length, room)
        peak = max(peak, step.limit_mb * room if now is None and step.limit_mb else now or 0.0)
        reserved = max(reserved, step.memory.now().reserved_mb or 0.0)
        if not fits:
            first_failure = first_failure or {"n": n, "length": length}
        if now is None:
            break
    return first_failure | {
        "ok": not first_failure,
        "peak_mem_mb": peak,
        "reserved_mem_mb": reserved,
        "allocator_retries": torch.cuda.memory_stats(step.device)["num_alloc_retries"]
        if step.device.type == "cuda"
        else None,
    }


if __name__ == "__main__":
    main()

"""What a strategy may ask of the other ranks; wires that send gradients as they are, compressed, or not at all.

A compressor may need several collectives. Started from futures of their predecessors, those of two gradients would
overtake each other differently on each rank: there one thread takes one job after the other, first in first out.
"""

from __future__ import annotations

import importlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.clock import Clock
from dynbench.runs.records import Column
from dynbench.wire.channel import Channel, nbytes
from dynbench.wire.segment import Segment
from dynbench.wire.traffic import Ledger, Traffic

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class Compressor(ABC):
    """Averages gradients over ranks in fewer bytes, by collectives of its own.

    Its methods run one after the other in a thread of the wire's, in the same order on all ranks, without gradients
    being recorded. They wait for what they send. State from step to step belongs to a segment's name: how gradients are
    cut into flat ones may change.

    Args:
        settings: the `compress` section; None for the defaults.
    """

    columns: ClassVar[Sequence[Column]] = ()
    """Columns that it adds to a rank's rows."""

    def __init__(self, settings: Compress | None = None) -> None:
        self.settings = settings

    def row(self) -> Mapping[str, object]:
        """The values of `columns` for the step that ended; called when nothing is being sent."""
        return {}

    def weigh(self, weight: float) -> None:  # noqa: B027  # most do not use it
        """What this rank's samples of the step count, for compressors whose ranks vote; before the first gradient."""

    @abstractmethod
    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """The mean over ranks of `flat`, shape [n], in place; dividing by their number is the compressor's work."""

    def mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """This rank's part of that mean into `shard`, shape [n/G]; `flat` may be overwritten.

        Compressors that can send less override this.
        """
        self.mean(channel, flat, segments)
        shard.copy_(torch.chunk(flat, channel.world_size)[channel.rank])

    def state_dict(self) -> dict[str, Tensor]:
        """Its state from step to step; empty for most. A probe of memory counts it where this is overridden."""
        return {}


class Gatherer(ABC):
    """Gathers shards of parameters in fewer bytes."""

    @abstractmethod
    def gather(self, channel: Channel, full: Tensor, shard: Tensor, parts: Sequence[Segment]) -> Future[Tensor]:
        """As `Wire.gather`; what stands in `full` is the same on all ranks."""


def new_future(device: torch.device) -> Future[Tensor]:
    """A future of tensors on `device`."""
    return Future(devices=[device]) if device.type == "cuda" else Future()


class Wire:
    """The verbs of a strategy, called in the same order on all ranks; gradients are sent as they are.

    Verbs return at once. Flat tensors are contiguous, shape [n]; shards are the G equal parts of one, in order of rank.

    Args:
        channel: the wire closes it; None for one over the default process group.
        gatherer: how parts of shards are gathered; None sends them as they are.
    """

    failure: BaseException | None = None
    """Why this wire no longer works, where it knows better than the futures; torch hands on their texts only."""
    columns: Sequence[Column] = ()
    """Columns that the compressor on it adds to a rank's rows."""
    _gatherer: Gatherer | None = None

    def __init__(self, channel: Channel | None = None, gatherer: Gatherer | None = None) -> None:
        self._channel = Channel() if channel is None else channel
        self._gatherer = gatherer
        self.rank, self.world_size = self._channel.rank, self._channel.world_size
        self._ledger = self._channel.ledger

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group, for what torch sets up by itself."""
        return self._channel.group

    def row(self) -> Mapping[str, object]:
        """The values of `columns` for the step that ended."""
        return {}

    def weigh(self, weight: float) -> None:
        """What this rank's samples of the step count; called before the first gradient."""

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """The mean over ranks of a flat gradient, in place; divided first, for sums in half precision."""
        with self._averaging("all_reduce", flat):
            return self._begin(lambda: self._channel.all_reduce(flat.div_(self.world_size)), flat, flat)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """This rank's part of that mean into `shard`, shape [n/G]; `flat` is used up."""
        with self._averaging("reduce_scatter", flat):
            return self._begin(lambda: self._channel.reduce_scatter(shard, flat.div_(self.world_size)), shard, flat)

    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        """Every rank's `shard`, shape [n/G], into `full`, shape [n].

        Args:
            full: receives them, this rank's among them.
            shard: this rank's; it may be its place in `full`.
            parts: what a shard is made of, where it may be sent in fewer bytes, by which it changes; none sends it
                as it is.
        """
        gatherer = self._gatherer
        if gatherer is None or not parts:
            return self._begin(lambda: self._channel.all_gather(full, shard), full, shard)

        def gathered() -> Future[Tensor]:
            with self._ledger.in_place_of("gathered", "all_gather", nbytes(shard), self.world_size):
                return gatherer.gather(self._channel, full, shard, parts)

        return self._begin(gathered, full, shard)

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source`, in place."""
        return self._begin(lambda: self._channel.broadcast(tensor, source), tensor, tensor)

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`."""
        return self._begin(lambda: self._channel.send(tensor, to), tensor, tensor)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, in place."""
        return self._begin(lambda: self._channel.receive(tensor, source), tensor)

    def take(self) -> Traffic:
        """What was sent since the last call, as far as it is complete."""
        return self._ledger.take()

    def close(self) -> None:
        """Let go of threads and of the process group; no verb can be called any more."""
        self._channel.close()

    def _begin(
        self, operation: Callable[[], Future[Any]], result: Tensor, handed_in: Tensor | None = None
    ) -> Future[Tensor]:
        """Start an operation of the channel, for which the strategy hands in a tensor, or none."""
        self._hand_in(handed_in)
        return operation()

    def _averaging(self, operation: str, flat: Tensor) -> AbstractContextManager[None]:
        """What is called within averages `flat`, in place of one operation."""
        return self._ledger.in_place_of("gradient", operation, nbytes(flat), self.world_size)

    def _hand_in(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._ledger.hand_in(nbytes(tensor))


_FAKE = "torch.testing._internal.distributed.fake_pg"
"""Importing it registers torch's back end `fake`, whose collectives return at once."""


def null_group() -> dist.ProcessGroup:
    """A group of all processes of the default one, over which nothing is sent; a collective."""
    importlib.import_module(_FAKE)
    group: dist.ProcessGroup = dist.new_group(backend="fake")
    return group


class NullWire(Wire):
    """Sends nothing: every verb ends at once, with what this rank has, and a mean is this rank's own gradient.

    Args:
        rank: this rank.
        world_size: their number (G).
        group: of as many ranks for what torch divides among them by itself, of `null_group`, which outlives the wire;
            None for a group of this rank alone, made when it is first used.
        echoes: what is gathered is this rank's part in every place, and finite, as those need who gather into new
            memory; else the other places stay as they are.
    """

    def __init__(
        self, rank: int, world_size: int, group: dist.ProcessGroup | None = None, *, echoes: bool = False
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._given_group, self._echoes = group, echoes
        self._ledger = Ledger(Clock())

    @property
    def group(self) -> dist.ProcessGroup:
        """A process group over which nothing is sent."""
        return self._alone if self._given_group is None else self._given_group

    @cached_property
    def _alone(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group([self.rank], use_local_synchronization=True)
        return group

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """This rank's part of its own gradient."""
        shard.copy_(flat.view(self.world_size, -1)[self.rank].view_as(shard))
        return super().mean_shard(flat, segments, shard)

    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        """This rank's shard, which may be a part of `full`, in its place; or in all."""
        places = full.view(self.world_size, -1)
        if self._echoes:
            places.copy_(shard.view(1, -1).clone())
        else:
            places[self.rank].copy_(shard.view(-1))
        return super().gather(full, shard)

    def close(self) -> None:
        """End the group, if there is one."""
        if (group := self.__dict__.pop("_alone", None)) is not None:
            dist.destroy_process_group(group)

    def _begin(
        self, operation: Callable[[], Future[Any]], result: Tensor, handed_in: Tensor | None = None
    ) -> Future[Tensor]:
        """Nothing is begun."""
        self._hand_in(handed_in)
        future = new_future(result.device)
        future.set_result(result)
        return future

    def _averaging(self, operation: str, flat: Tensor) -> AbstractContextManager[None]:
        """Nothing would be sent of it."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], object]
    result: Tensor
    future: Future[Tensor]
    queued: torch.cuda.Event | None
    """When the tensors are ready, on CUDA."""


class QueuedWire(Wire):
    """Gradients travel as a compressor sends them, and everything else in turn with them.

    What a job raises comes out of its future, and of every later one: after it the ranks no longer agree on whose turn
    it is.

    Args:
        channel: the wire closes it.
        compressor: how gradients are averaged.
        gatherer: how parts of shards are gathered; None sends them as they are.
    """

    def __init__(self, channel: Channel, compressor: Compressor, gatherer: Gatherer | None = None) -> None:
        super().__init__(channel, gatherer)
        self._compressor = compressor
        self._group: dist.ProcessGroup | None = None
        self.columns = compressor.columns
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stream = _stream_of(channel.device)
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="dynbench-wire")
        self._thread.start()

    @property
    def group(self) -> dist.ProcessGroup:
        """One beside the channel's, as what torch sends by itself does not wait for its turn; at first a collective."""
        if self._group is None:
            ranks = dist.get_process_group_ranks(self._channel.group)
            self._group = dist.new_group(ranks, timeout=self._channel.timeout)
        return self._group

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """The compressor's mean."""

        def average() -> None:
            with self._averaging("all_reduce", flat):
                self._compressor.mean(self._channel, flat, segments)

        return self._queue(average, flat, flat)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """The compressor's mean of this rank's shard."""

        def average() -> None:
            with self._averaging("reduce_scatter", flat):
                self._compressor.mean_shard(self._channel, flat, segments, shard)

        return self._queue(average, shard, flat)

    def row(self) -> Mapping[str, object]:
        """What the compressor says of the step that ended."""
        return self._compressor.row()

    def weigh(self, weight: float) -> None:
        """Handed on."""
        self._compressor.weigh(weight)

    def close(self) -> None:
        """Finish the job in progress, give up the others, and close the channel."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        if self._group is not None and self._channel.device.type != "cuda" and self._channel.ledger.idle:
            dist.destroy_process_group(self._group)
        self._group = None
        self._channel.close()

    def _begin(
        self, operation: Callable[[], Future[Tensor]], result: Tensor, handed_in: Tensor | None = None
    ) -> Future[Tensor]:
        """In turn with the gradients."""
        return self._queue(lambda: operation().wait(), result, handed_in)

    def _queue(self, work: Callable[[], object], result: Tensor, handed_in: Tensor | None) -> Future[Tensor]:
        self._hand_in(handed_in)
        queued = None
        if self._stream is not None:
            queued = torch.cuda.current_stream(self._channel.device).record_event()
            for tensor in (result, handed_in):
                if tensor is not None:
                    tensor.record_stream(self._stream)
        job = _Job(work, result, new_future(self._channel.device), queued)
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # holds a gradient

    def _do(self, job: _Job) -> None:
        if self._closed and self.failure is None:
            self.failure = RuntimeError("the wire was closed before this was sent")
        if self.failure is None:
            try:
                with torch.no_grad(), self._on_stream(job):
                    job.work()
                    job.future.set_result(job.result)
                return
            except BaseException as error:  # whatever it is, the rank that waits for the future must be told
                self.failure = error
        job.future.set_exception(self.failure)  # type: ignore[arg-type]  # torch's annotation is wrong

    def _on_stream(self, job: _Job) -> AbstractContextManager[object]:
        if self._stream is None or job.queued is None:
            return nullcontext()
        self._stream.wait_event(job.queued)
        return torch.cuda.stream(self._stream)


def _stream_of(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's

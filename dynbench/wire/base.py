"""What a strategy may ask of the other ranks; wires that send gradients as they are, or nothing."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.clock import Clock
from dynbench.runs.columns import Column
from dynbench.wire.channel import Channel, nbytes
from dynbench.wire.segment import Segment
from dynbench.wire.traffic import Ledger, Traffic


class Wire(ABC):
    """The verbs of a strategy; called in the same order on all ranks.

    Verbs return at once. Flat tensors are contiguous, shape [n]; shards are the G equal parts of one, in order of rank.
    """

    rank: int
    """This rank."""
    world_size: int
    """Their number (G)."""
    failure: BaseException | None = None
    """Why this wire no longer works, where it knows better than the futures; torch hands on their texts only."""
    columns: Sequence[Column] = ()
    """Columns that the compressor on it adds to a rank's rows."""

    @property
    @abstractmethod
    def group(self) -> dist.ProcessGroup:
        """The process group, for what torch sets up by itself."""

    def row(self) -> Mapping[str, object]:
        """The values of `columns` for the step that ended."""
        return {}

    def weigh(self, weight: float) -> None:  # noqa: B027  # of compressors whose ranks vote
        """What this rank's samples of the step count; called before the first gradient."""

    @abstractmethod
    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """The mean over ranks of a flat gradient, in place."""

    @abstractmethod
    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """This rank's part of that mean into `shard`, shape [n/G]; `flat` is used up."""

    @abstractmethod
    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        """Every rank's `shard`, shape [n/G], into `full`, shape [n].

        Args:
            full: receives them, this rank's among them.
            shard: this rank's; it may be its place in `full`.
            parts: what a shard is made of, where it may be sent in fewer bytes, by which it changes; none sends it
                as it is.
        """

    @abstractmethod
    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source`, in place."""

    @abstractmethod
    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`."""

    @abstractmethod
    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, in place."""

    @abstractmethod
    def take(self) -> Traffic:
        """What was sent since the last call, as far as it is complete."""

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and of the process group; nothing can be asked any more."""


class Averager(ABC):
    """The mean of gradients by collectives of its own, each waited for before it returns: a compressor."""

    columns: ClassVar[Sequence[Column]] = ()
    """Columns that it adds to a rank's rows."""

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


class Gatherer(ABC):
    """Gathers shards of parameters in fewer bytes."""

    @abstractmethod
    def gather(self, channel: Channel, full: Tensor, shard: Tensor, parts: Sequence[Segment]) -> Future[Tensor]:
        """As `Wire.gather`; what stands in `full` is the same on all ranks."""


def new_future(device: torch.device) -> Future[Tensor]:
    """A future of tensors on `device`."""
    return Future(devices=[device]) if device.type == "cuda" else Future()


class PlainWire(Wire):
    """Gradients travel as they are.

    Args:
        channel: the wire closes it; None for one over the default process group.
        gatherer: how parts of shards are gathered; None sends them as they are.
    """

    def __init__(self, channel: Channel | None = None, gatherer: Gatherer | None = None) -> None:
        self._channel = Channel() if channel is None else channel
        self._gatherer = gatherer
        self.rank, self.world_size = self._channel.rank, self._channel.world_size

    @property
    def group(self) -> dist.ProcessGroup:
        """The channel's process group."""
        return self._channel.group

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """Divided first, so that a sum in half precision does not overflow, then all-reduced."""
        with self._averaging("all_reduce", flat):
            return self._begin(lambda: self._channel.all_reduce(flat.div_(self.world_size)), flat, flat)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """Divided first, then reduce-scattered."""
        with self._averaging("reduce_scatter", flat):
            return self._begin(lambda: self._channel.reduce_scatter(shard, flat.div_(self.world_size)), shard, flat)

    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        """All-gathered."""
        gatherer, channel = self._gatherer, self._channel
        if gatherer is None or not parts:
            return self._begin(lambda: channel.all_gather(full, shard), full, shard)

        def gathered() -> Future[Tensor]:
            with channel.ledger.in_place_of("gathered", "all_gather", nbytes(shard), self.world_size):
                return gatherer.gather(channel, full, shard, parts)

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
        """What was sent since the last call."""
        return self._channel.ledger.take()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _begin(
        self, operation: Callable[[], Future[Tensor]], result: Tensor, handed_in: Tensor | None = None
    ) -> Future[Tensor]:
        """Start an operation of the channel, for which the strategy hands in a tensor, or none."""
        self._hand_in(handed_in)
        return operation()

    def _averaging(self, operation: str, flat: Tensor) -> AbstractContextManager[None]:
        """What is called within averages `flat`, in place of one operation."""
        return self._channel.ledger.in_place_of("gradient", operation, nbytes(flat), self.world_size)

    def _hand_in(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._channel.ledger.hand_in(nbytes(tensor))


_FAKE = "torch.testing._internal.distributed.fake_pg"
"""Importing it registers torch's back end `fake`, whose collectives return at once."""


def silent_group() -> dist.ProcessGroup:
    """A group of all processes of the default one, over which nothing goes; a collective."""
    importlib.import_module(_FAKE)
    group: dist.ProcessGroup = dist.new_group(backend="fake")
    return group


class NullWire(Wire):
    """Answers at once with what this rank has; ranks train apart.

    Args:
        rank: this rank.
        world_size: their number (G).
        silent: a group of as many ranks for what torch divides among them by itself, of `silent_group`, which outlives
            the wire; None for a group of this rank alone, made when it is asked for.
        echoes: what is gathered is this rank's part in every place, and finite, as those need who gather into new
            memory; else the other places stay as they are.
    """

    def __init__(
        self, rank: int, world_size: int, silent: dist.ProcessGroup | None = None, *, echoes: bool = False
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._silent, self._echoes = silent, echoes
        self._ledger = Ledger(Clock())

    @property
    def group(self) -> dist.ProcessGroup:
        """A process group over which nothing goes."""
        return self._alone if self._silent is None else self._silent

    @cached_property
    def _alone(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group([self.rank], use_local_synchronization=True)
        return group

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """This rank's own gradient."""
        return self._answer(flat, flat)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """This rank's part of its own gradient."""
        return self._answer(flat, shard.copy_(flat.view(self.world_size, -1)[self.rank].view_as(shard)))

    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        """This rank's shard, which may be a part of `full`, in its place; or in all."""
        places = full.view(self.world_size, -1)
        if self._echoes:
            places.copy_(shard.view(1, -1).clone())
        else:
            places[self.rank].copy_(shard.view(-1))
        return self._answer(shard, full)

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """This rank's own tensor."""
        return self._answer(tensor, tensor)

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """Goes nowhere."""
        return self._answer(tensor, tensor)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What `tensor` held before."""
        return self._answer(None, tensor)

    def take(self) -> Traffic:
        """What the strategy handed in since the last call; nothing was sent."""
        return self._ledger.take()

    def close(self) -> None:
        """End the group, if there is one."""
        if (group := self.__dict__.pop("_alone", None)) is not None:
            dist.destroy_process_group(group)

    def _answer(self, handed_in: Tensor | None, result: Tensor) -> Future[Tensor]:
        if handed_in is not None:
            self._ledger.hand_in(nbytes(handed_in))
        future = new_future(result.device)
        future.set_result(result)
        return future

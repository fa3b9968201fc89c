"""Straight to the channel: asynchronous, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.runs.columns import Column
from dynbench.wire.channel import Channel, nbytes
from dynbench.wire.segment import Segment
from dynbench.wire.traffic import Traffic


class PlainWire:
    """Gradients travel as they are.

    Args:
        channel: the wire closes it; None for one over the default process group.
    """

    failure: BaseException | None = None
    columns: Sequence[Column] = ()

    def __init__(self, channel: Channel | None = None) -> None:
        self._channel = Channel() if channel is None else channel
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

    def gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """All-gathered."""
        return self._begin(lambda: self._channel.all_gather(full, shard), full, shard)

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source`, in place."""
        return self._begin(lambda: self._channel.broadcast(tensor, source), tensor, tensor)

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`."""
        return self._begin(lambda: self._channel.send(tensor, to), tensor, tensor)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, in place."""
        return self._begin(lambda: self._channel.receive(tensor, source), tensor)

    def row(self) -> Mapping[str, object]:
        """Nothing is compressed."""
        return {}

    def weigh(self, weight: float) -> None:
        """No rank votes."""

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
        return self._channel.ledger.averaging(operation, nbytes(flat), self.world_size)

    def _hand_in(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._channel.ledger.hand_in(nbytes(tensor))

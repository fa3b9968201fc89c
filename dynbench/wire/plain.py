"""Straight to the channel: asynchronous, in the order of the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    @property
    def rank(self) -> int:
        """This rank."""
        return self._channel.rank

    @property
    def world_size(self) -> int:
        """Their number (G)."""
        return self._channel.world_size

    @property
    def group(self) -> dist.ProcessGroup:
        """The channel's process group."""
        return self._channel.group

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """Divided first, so that a sum in half precision does not overflow, then all-reduced."""
        self._hand_in(flat)
        return self._channel.all_reduce(flat.div_(self.world_size))

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """Divided first, then reduce-scattered."""
        self._hand_in(flat)
        return self._channel.reduce_scatter(shard, flat.div_(self.world_size))

    def gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """All-gathered."""
        self._hand_in(shard)
        return self._channel.all_gather(full, shard)

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source`, in place."""
        self._hand_in(tensor)
        return self._channel.broadcast(tensor, source)

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`."""
        self._hand_in(tensor)
        return self._channel.send(tensor, to)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, in place."""
        return self._channel.receive(tensor, source)

    def row(self) -> Mapping[str, object]:
        """Nothing is compressed."""
        return {}

    def take(self) -> Traffic:
        """What was sent since the last call."""
        return self._channel.ledger.take()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _hand_in(self, tensor: Tensor) -> None:
        self._channel.ledger.hand_in(nbytes(tensor))

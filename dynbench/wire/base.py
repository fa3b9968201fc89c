"""What a strategy may ask of the other ranks; and what a wire asks of a compressor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.runs.columns import Column
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment
from dynbench.wire.traffic import Traffic


class Wire(Protocol):
    """The verbs of a strategy; called in the same order on all ranks.

    Verbs return at once. Flat tensors are contiguous, shape [n]; shards are the G equal parts of one, in order of rank.
    """

    rank: int
    """This rank."""
    world_size: int
    """Their number (G)."""
    failure: BaseException | None
    """Why this wire no longer works, where it knows better than the futures; torch hands on their texts only."""
    columns: Sequence[Column]
    """Columns that the compressor on it adds to a rank's rows."""

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group, for what torch sets up by itself."""

    def row(self) -> Mapping[str, object]:
        """Their values for the step that ended."""

    def weigh(self, weight: float) -> None:
        """What this rank's samples of the step count; said before the first gradient."""

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """The mean over ranks of a flat gradient, in place."""

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """This rank's part of that mean into `shard`, shape [n/G]; `flat` is used up."""

    def gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """Every rank's `shard`, shape [n/G], into `full`, shape [n]."""

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source`, in place."""

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`."""

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, in place."""

    def take(self) -> Traffic:
        """What was sent since the last call, as far as it is complete."""

    def close(self) -> None:
        """Let go of threads and of the process group; nothing can be asked any more."""


class Averager(Protocol):
    """The mean of gradients by collectives of its own, each waited for before it returns: a compressor."""

    @property
    def columns(self) -> Sequence[Column]:
        """Columns that it adds to a rank's rows."""

    def row(self) -> Mapping[str, object]:
        """Their values for the step that ended."""

    def weigh(self, weight: float) -> None:
        """What this rank's samples of the step count."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """The mean over ranks of `flat`, in place."""

    def mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """This rank's part of that mean into `shard`; `flat` may be overwritten."""


def new_future(device: torch.device) -> Future[Tensor]:
    """A future of tensors on `device`."""
    return Future(devices=[device]) if device.type == "cuda" else Future()

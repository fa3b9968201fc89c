"""A wire that sends nothing: what a strategy costs without any communication."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.clock import HostClock
from dynbench.runs.columns import Column
from dynbench.wire.base import new_future
from dynbench.wire.channel import nbytes
from dynbench.wire.segment import Segment
from dynbench.wire.traffic import Ledger, Traffic

_FAKE = "torch.testing._internal.distributed.fake_pg"
"""Importing it registers torch's back end `fake`, whose collectives return at once."""


def silent_group() -> dist.ProcessGroup:
    """A group of all processes of the default one, over which nothing goes; a collective."""
    importlib.import_module(_FAKE)
    group: dist.ProcessGroup = dist.new_group(backend="fake")
    return group


class NullWire:
    """Answers at once with what this rank has; ranks train apart.

    Args:
        rank: this rank.
        world_size: their number (G).
        silent: a group of as many ranks for what torch divides among them by itself, of `silent_group`, which outlives
            the wire; None for a group of this rank alone, made when it is asked for.
        echoes: what is gathered is this rank's part in every place, and finite, as those need who gather into new
            memory; else the other places stay as they are.
    """

    failure: BaseException | None = None
    columns: Sequence[Column] = ()

    def __init__(
        self, rank: int, world_size: int, silent: dist.ProcessGroup | None = None, *, echoes: bool = False
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._silent, self._echoes = silent, echoes
        self._ledger = Ledger(HostClock())

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

    def gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
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

    def row(self) -> Mapping[str, object]:
        """Nothing is compressed."""
        return {}

    def weigh(self, weight: float) -> None:
        """No rank votes."""

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

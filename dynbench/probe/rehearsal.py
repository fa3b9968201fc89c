"""A strategy as one of several ranks runs it, without the others: its memory and its own work, and nothing sent."""

from __future__ import annotations

import importlib

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.config.schema import Config
from dynbench.plugins import STRATEGIES, options_of
from dynbench.plugins.strategies import DilocoOptions
from dynbench.sync.base import Strategy
from dynbench.wire.null import NullWire

_FAKE = "torch.testing._internal.distributed.fake_pg"
"""Importing it registers torch's back end `fake`, whose collectives return at once."""


def silent_group() -> dist.ProcessGroup:
    """A group of all processes of the default one, over which nothing goes; a collective."""
    importlib.import_module(_FAKE)
    group: dist.ProcessGroup = dist.new_group(backend="fake")
    return group


class RehearsalWire(NullWire):
    """A wire to ranks that are not there, which have what this rank has.

    So what is gathered is finite, where a null wire leaves what was in memory.

    Args:
        rank: this rank.
        world_size: their number (G).
        group: of as many ranks, for what torch sets up by itself; it outlives the wire.
    """

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup) -> None:
        super().__init__(rank, world_size)
        self._silent = group

    @property
    def group(self) -> dist.ProcessGroup:
        """The group that was given."""
        return self._silent

    def gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """This rank's shard in every place; it may be a part of `full`."""
        full.view(self.world_size, -1).copy_(shard.view(1, -1).clone())
        return self._answer(shard, full)


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
    wire = RehearsalWire(entry.servers + worker, entry.servers + workers, group)
    strategy: Strategy = entry.load()(sync, wire)
    return strategy

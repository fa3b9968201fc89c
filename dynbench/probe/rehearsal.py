"""A strategy as one of several ranks runs it, without the others: its memory and its own work, and nothing sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.compress.base import Compressor
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.compressor_options import CompressionOptions
from dynbench.plugins.strategies import DilocoOptions
from dynbench.sync.base import Strategy
from dynbench.wire.channel import Channel
from dynbench.wire.null import NullWire
from dynbench.wire.segment import Segment


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

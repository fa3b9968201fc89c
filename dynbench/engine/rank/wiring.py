"""A strategy, the wire it talks through, and what the wire compresses with: put together from the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from dynbench.compress.base import Compressor
from dynbench.config.schema import Config
from dynbench.errors import UsageError
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.strategies import ShardOptions
from dynbench.sync.base import Strategy
from dynbench.sync.local import Local
from dynbench.wire.base import Wire
from dynbench.wire.channel import Channel
from dynbench.wire.link import Link
from dynbench.wire.null import NullWire, silent_group
from dynbench.wire.plain import PlainWire
from dynbench.wire.queued import QueuedWire


@contextmanager
def session(strategy: Strategy) -> Iterator[Strategy]:
    """Closes a strategy where all went well.

    A rank that fails leaves it open and ends: the others notice when its group goes, and find the cause told by then.
    """
    yield strategy
    strategy.close()


def build_wire(config: Config, device: torch.device) -> Wire:
    """A wire over a process group of its own, with the compressor of `compress.name` in it; a collective.

    Or, with `sync.communicate: false`, one that sends nothing, where nothing is compressed either.
    """
    if not config.sync.communicate:
        entry = STRATEGIES.find(config.sync.name)
        silent = silent_group() if entry.moments == "divided" else None  # whose ranks hold their part here too
        return NullWire(dist.get_rank(), dist.get_world_size(), silent, echoes=not entry.whole)
    channel = Channel.of_its_own(device, timedelta(seconds=config.launch.timeout_s))
    if options_of(config.sync, ShardOptions).reduce_scatter == "native":
        channel.native_reduce_scatter = True
    if config.launch.link_gbps is not None:
        if device.type == "cuda" or config.launch.nnodes > 1:  # GPUs go on before a host would have waited
            asked = f"launch.link_gbps: {config.launch.link_gbps:g}, but a link is emulated on CPUs of one node only"
            raise UsageError(asked, "Leave it out, or --set launch.device=cpu on one node.")
        channel.link = Link(config.launch.link_gbps)
    compressor: Compressor | None = COMPRESSORS.find(config.compress.name).load()(config.compress)
    return PlainWire(channel) if compressor is None else QueuedWire(channel, compressor)


def build_strategy(config: Config, device: torch.device) -> Strategy:
    """The strategy `sync.name` on a wire of its own, or what virtual ranks play instead; of real ranks a collective."""
    if config.launch.launcher == "virtual":
        return Local(config.sync)
    strategy: Strategy = STRATEGIES.find(config.sync.name).load()(config.sync, build_wire(config, device))
    return strategy

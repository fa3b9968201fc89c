"""The strategies: how gradients meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dynbench.plugins.registry import Entry, Registry
from dynbench.plugins.section import PositiveFloat, Section


@dataclass(frozen=True)
class StrategyEntry(Entry):
    """A subclass of `dynbench.sync.base.Strategy`, called with the `sync` section and a wire.

    Args:
        virtual: virtual ranks can play it: it does what they do, who add gradients up and send nothing.
        servers: ranks that it has serve and train nothing.
        across_steps: what it starts in one step goes on in the next, so that an arm's turn of a step would cut it off.
    """

    base: ClassVar[str] = "dynbench.sync.base:Strategy"
    virtual: bool = False
    servers: int = 0
    across_steps: bool = False


class BucketOptions(Section):
    """Of strategies that send gradients in buckets."""

    bucket_mb: PositiveFloat = 25.0
    """Bucket size in MiB, as torch counts it."""


STRATEGIES: Registry[StrategyEntry] = Registry(
    "strategy",
    "sync.name",
    (
        StrategyEntry(
            "ddp",
            "torch's DistributedDataParallel: buckets all-reduced while the backward pass runs",
            "dynbench.sync.ddp:Ddp",
            BucketOptions,
            virtual=True,
        ),
    ),
)

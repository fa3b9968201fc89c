"""The strategies by name; adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from dynbench.config.schema import Sync
from dynbench.sync.base import Strategy
from dynbench.sync.ddp import Ddp

REGISTRY: dict[str, type[Strategy]] = {
    "ddp": Ddp,
}


def build_strategy(model: nn.Module, settings: Sync, on_ready: Callable[[], None]) -> Strategy:
    """The strategy `sync.name` around a model; see `Strategy` for the arguments."""
    return REGISTRY[settings.name](model, settings, on_ready)

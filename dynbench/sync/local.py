"""No synchronisation: one process plays every rank in turn, and gradients add up where they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from torch import nn

from dynbench.config.schema import Sync
from dynbench.sync.base import Strategy
from dynbench.wire.base import Wire
from dynbench.wire.null import NullWire


class Local(Strategy):
    """For virtual ranks; not in the registry. `on_ready` is never called: gradients are ready when backward ends.

    Gradients are kept from step to step: the first rank's backward pass would else be cheaper than the others', as it
    finds none to add to.
    """

    equal_gradients: ClassVar[bool] = True
    keeps_gradients: ClassVar[bool] = True

    def __init__(self, settings: Sync | None = None, wire: Wire | None = None) -> None:
        super().__init__(settings, NullWire(0, 1) if wire is None else wire)

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        """Nothing is ever sent."""
        return nullcontext()

    def finish(self) -> None:
        """Nothing to wait for."""

"""torch's own optimizer with divided state, under DDP: what `zero1` is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from dynbench.sync.base import OptimizerFactory
from dynbench.sync.ddp import Ddp


class _Timed(ZeroRedundancyOptimizer):
    """Tells when it broadcasts."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], waiting: Callable[[], AbstractContextManager[None]], **kwargs: Any
    ) -> None:
        self._waiting = waiting
        super().__init__(parameters, **kwargs)

    def _sync_params(self) -> None:
        with self._waiting():
            super()._sync_params()  # type: ignore[misc]  # torch's has no types


class Zero1Torch(Ddp):
    """DDP with a ZeroRedundancyOptimizer, whose broadcasts after a step go past the wire and are not counted."""

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """Over all parameters, each stepped by the rank that it is dealt to."""
        return _Timed(parameters, self.waiting, optimizer_class=factory, process_group=self.wire.group)

"""torch's own optimizer with divided state, under DDP: what `zero1` is held against."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from dynbench.sync.base import OptimizerFactory
from dynbench.sync.ddp import Ddp


class Zero1Torch(Ddp):
    """DDP with a ZeroRedundancyOptimizer, whose broadcasts after a step go past the wire and are not counted."""

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """Over all parameters, each stepped by the rank that it is dealt to."""
        return ZeroRedundancyOptimizer(parameters, optimizer_class=factory, process_group=self.wire.group)  # type: ignore[arg-type]  # torch asks for a class, and only calls it

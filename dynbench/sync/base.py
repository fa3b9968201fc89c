"""What the training loop asks of a strategy that synchronises gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from dynbench.config.schema import Sync

OptimizerFactory = Callable[[nn.Module], Optimizer]
"""Builds the optimizer over the parameters of the module it is given."""


class Strategy(ABC):
    """Turns every rank's local gradients into their mean over ranks.

    Each step the loop runs the micro-batches, all backward passes but the last inside `accumulating()`, then calls
    `finish()`. A strategy calls `on_ready` once per step, from any thread, at the moment this rank's last local
    gradient is complete and before its transfer begins: time before it is compute, time after it is sync.

    Args:
        model: this rank's model on its device; equal weights on every rank.
        settings: the `sync` section.
        on_ready: notes the moment; must not be delayed, must not synchronise the device.
    """

    equal_gradients: ClassVar[bool]
    """Whether every rank holds the same gradients after `finish`; if not, the loss scaler has to agree by itself."""

    keeps_gradients: ClassVar[bool] = False
    """Whether gradients are cleared to zeros between steps instead of being dropped."""

    module: nn.Module
    """What forward is called on."""

    @abstractmethod
    def __init__(self, model: nn.Module, settings: Sync, on_ready: Callable[[], None]) -> None: ...

    @abstractmethod
    def accumulating(self) -> AbstractContextManager[None]:
        """Inside it gradients are added up locally and nothing is sent."""

    @abstractmethod
    def finish(self) -> None:
        """Return when all gradients are synchronised (on CUDA: when that is queued on the current stream)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the model and of the process group, which must not outlive the loop."""

    def build_optimizer(self, factory: OptimizerFactory) -> Optimizer:
        """The optimizer of this rank; strategies that shard its state override this."""
        return factory(self.module)

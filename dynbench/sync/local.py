"""No synchronisation: one process plays every rank in turn, and gradients add up where they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.config.schema import Sync
from dynbench.sync.base import Stepper, Strategy
from dynbench.wire.base import Wire
from dynbench.wire.null import NullWire


class Local(Strategy):
    """For virtual ranks; not in the registry. `on_ready` is never called: gradients are ready when backward ends.

    Gradients are cleared to zeros between steps, not dropped: the first rank's backward pass would else be cheaper than
    the others', as it finds none to add to. A parameter that no rank used has no gradient in the optimizer's step, as
    under DDP: with zeros, weight decay and momentum would move it.
    """

    equal_gradients: ClassVar[bool] = True

    def __init__(self, settings: Sync | None = None, wire: Wire | None = None) -> None:
        super().__init__(settings, NullWire(0, 1) if wire is None else wire)
        self._cleared: dict[nn.Parameter, tuple[Tensor, int]] = {}
        """Gradients of zeros, with the version that autograd counts up when it adds to one."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        """Nothing is ever sent."""
        return nullcontext()

    def finish(self) -> None:
        """Nothing to wait for."""

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The optimizer's step, without what was not used since gradients were cleared."""
        unused = {
            parameter: zeros
            for parameter, (zeros, version) in self._cleared.items()
            if parameter.grad is zeros and zeros._version == version
        }
        for parameter in unused:
            parameter.grad = None
        super().step(optimizer, precision)
        for parameter, zeros in unused.items():
            parameter.grad = zeros

    def clear_gradients(self, optimizer: Optimizer) -> None:
        """To zeros."""
        optimizer.zero_grad(set_to_none=False)
        gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        self._cleared = {parameter: (grad, grad._version) for parameter, grad in gradients if grad is not None}

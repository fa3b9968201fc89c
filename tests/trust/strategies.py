"""Strategies to try comparisons on: DDP by another name, and DDP with a tenth more to compute on every rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dynbench.sync.ddp import Ddp


class Twin(Ddp):
    """DDP: whatever a comparison finds between the two is wrong."""


class TenthMore(Ddp):
    """DDP, and every micro-batch runs a tenth of its samples again; gradients stay as they are."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        return _TenthMore(super()._wrapped(model), model)


class _TenthMore(nn.Module):
    def __init__(self, wrapped: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.wrapped, self.model = wrapped, model

    def forward(self, **inputs: Tensor) -> Any:
        """The model's output, to which the samples that run again add nothing but their backward pass."""
        output = self.wrapped(**inputs)
        rows = max(1, round(len(next(iter(inputs.values()))) / 10))
        again = self.model(**{name: tensor[:rows] for name, tensor in inputs.items()})
        output.logits = output.logits + 0.0 * again.logits.sum()
        return output

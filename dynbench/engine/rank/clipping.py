"""Gradients scaled down to a largest norm, and what that norm was."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynbench.runs.columns import CLIPPED, GRAD_NORM, Column

CLIP_COLUMNS: tuple[Column, ...] = (GRAD_NORM, CLIPPED)


class Clipper:
    """Clips by the norm of the whole gradient.

    Args:
        max_norm: `train.max_grad_norm`.
        norm: the norm over all parameters and shards, as `Strategy.gradient_norm`.
    """

    def __init__(self, max_norm: float, norm: Callable[[], Tensor]) -> None:
        self._max_norm = max_norm
        self._norm = norm
        self._last: Tensor | None = None

    def clip(self, optimizer: Optimizer) -> None:
        """Scale the unscaled gradients that `optimizer` holds; the device is not waited for."""
        self._last = self._norm().detach()
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grads_with_norm_(held, self._max_norm, self._last)

    def row(self) -> dict[str, object]:
        """The columns of the step that ended, empty where this rank took no optimizer step; waits for the device."""
        last, self._last = self._last, None
        if last is None:
            return {GRAD_NORM.name: None, CLIPPED.name: None}
        norm = last.item()
        return {GRAD_NORM.name: norm, CLIPPED.name: int(norm > self._max_norm)}

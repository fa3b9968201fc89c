"""One all-reduce per parameter, each begun while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.futures import Future

from dynbench.sync.in_order import InOrder, Part
from dynbench.sync.one_model import flat_like, view_like


class Alone(Part):
    """One gradient, averaged where it is."""

    def take_up(self, index: int) -> None:
        """Take it as it lies in memory."""
        self._parameter = self.members[index][1]
        gradient = self._parameter.grad
        self._flat = flat_like(torch.zeros_like(self._parameter) if gradient is None else gradient, self._parameter)

    def send(self) -> Future[Tensor]:
        """Begin to average it."""
        return self._wire.mean(self._flat, self.segments)

    def take_back(self, used: Iterable[int]) -> None:
        """Give it where it was missing, or was copied."""
        flat, parameter = self._flat, self._parameter
        del self._flat
        for _ in used:
            if parameter.grad is None:
                parameter.grad = view_like(flat, parameter)
            elif parameter.grad.data_ptr() != flat.data_ptr():
                parameter.grad.copy_(view_like(flat, parameter))


class OverlapDDP(InOrder):
    """Data parallelism that hides communication behind the backward pass, with a message for every parameter."""

    def _cut(self, order: Sequence[int]) -> Iterable[Part]:
        return [Alone({index: self._trained[index]}, self._wire) for index in order]

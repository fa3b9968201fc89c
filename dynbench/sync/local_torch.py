"""torch's own local SGD: what `local_sgd` is held against."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.optim import Optimizer

from dynbench.sync.base import Stepper
from dynbench.sync.local_steps import LocalSteps


class LocalSgdTorch(LocalSteps):
    """Ranks that step apart, with a PeriodicModelAverager, whose all-reduces go past the wire and are not counted.

    It averages after the first step, and then every `sync.inner_steps`.
    """

    def _wrapped(self, model: nn.Module) -> nn.Module:
        self._averager = PeriodicModelAverager(period=self._every, process_group=self.wire.group)
        return super()._wrapped(model)

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The inner step, and the mean where it is due."""
        precision.step(optimizer)
        meets = self._averager.step % self._every == 0
        for fragment in self._fragments:
            for _, parameter in fragment.named:
                if parameter.grad is None:  # torch leaves it out, on this rank alone
                    parameter.grad = torch.zeros_like(parameter)
        with self.waiting():
            self._averager.average_parameters(self.model.parameters())
        self._met = sum(fragment.size for fragment in self._fragments) if meets else 0
        if meets:
            self._has_met = True
            for fragment in self._fragments:
                fragment.anchor = fragment.now()

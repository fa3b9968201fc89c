"""Strategies over the public classes, each with a planted fault."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.sync.base import OptimizerFactory, Strategy
from dynbench.sync.in_order import BucketedDDP
from dynbench.sync.replicated import Replicated
from dynbench.sync.sharded import Zero1

SMALL_MB = 0.0003


class SendsEarly(BucketedDDP):
    """Sends a bucket while one of its gradients is missing."""

    def _send_complete(self) -> None:
        while len(self._sent) < len(self._parts) and len(self._parts[len(self._sent)].missing) <= 1:
            self._sent.append(self._parts[len(self._sent)].send())


class SendsAtTheEnd(BucketedDDP):
    """Sends nothing before the backward pass is over."""

    _within = False

    def _arrived(self, index: int, parameter: Tensor) -> None:
        if self._left == len(self._trained):
            torch.autograd.Variable._execution_engine.queue_callback(self._send_complete)
        self._within = True
        super()._arrived(index, parameter)
        self._within = False

    def _send_complete(self) -> None:
        if not self._within:
            super()._send_complete()


class TiedTwice(Zero1):
    """Steps a tied parameter once for each of its names."""

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        twice = [
            piece
            for bucket in self.module.sharded
            for index, piece in bucket.pieces.items()
            if _times(self.model, bucket.members[index][1]) > 1
        ]
        return factory([*self.module.pieces, *twice])


def _times(model: nn.Module, parameter: nn.Parameter) -> int:
    return sum(each is parameter for _, each in model.named_parameters(remove_duplicate=False))


def _strategy(make: type[BucketedDDP]) -> type[Strategy]:
    class Broken(Replicated):
        def _wrapped(self, model: nn.Module) -> nn.Module:
            return make(model, SMALL_MB, wire=self.wire, on_ready=self.on_ready)

    return Broken


BROKEN_SYNC: dict[str, type[Strategy]] = {
    "sends_early": _strategy(SendsEarly),
    "sends_at_the_end": _strategy(SendsAtTheEnd),
    "tied_twice": TiedTwice,
}

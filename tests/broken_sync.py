"""Strategies over the public classes, each with a planted fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.sync.base import OptimizerFactory, Strategy
from dynbench.sync.in_order import Alone, BucketedDDP, OverlapDDP, Part
from dynbench.sync.replicated import Replicated
from dynbench.sync.sharded import Zero1
from dynbench.sync.synchronised import NaiveDDP, SynchronisedModule

SMALL_MB = 0.0003


class _OfParameter(Alone):
    def take_up(self, index: int) -> None:
        self._flat = self.members[index][1].detach().view(-1)

    def take_back(self, used: Iterable[int]) -> None:
        del self._flat


class AveragesParameters(OverlapDDP):
    """Takes what the hook is called with, the parameter, for its gradient."""

    def _cut(self, order: Sequence[int]) -> list[Part]:
        return [_OfParameter({index: self._trained[index]}, self._wire) for index in order]


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


class ForgetsToDivide(NaiveDDP):
    """Sums."""

    def _average(self) -> None:
        super()._average()
        for _, parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad *= self._wire.world_size


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


def _strategy(make: type[SynchronisedModule]) -> type[Strategy]:
    class Broken(Replicated):
        def _wrapped(self, model: nn.Module) -> nn.Module:
            size = {"bucket_size_mb": SMALL_MB} if issubclass(make, BucketedDDP) else {}
            return make(model, wire=self.wire, on_ready=self.on_ready, **size)

    return Broken


BROKEN_SYNC: dict[str, type[Strategy]] = {
    "averages_parameters": _strategy(AveragesParameters),
    "sends_early": _strategy(SendsEarly),
    "sends_at_the_end": _strategy(SendsAtTheEnd),
    "forgets_to_divide_gradients": _strategy(ForgetsToDivide),
    "tied_twice": TiedTwice,
}

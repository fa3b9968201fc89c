"""torch's fully_shard as a strategy, over the public class."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dynbench.plugins import options_of
from dynbench.plugins.strategies import FsdpOptions
from dynbench.sync.base import OptimizerFactory, Stepper, Strategy
from dynbench.sync.fully_sharded import FullyShardedDDP


class Fsdp(Strategy):
    """`FullyShardedDDP`; passes that wait for a gather or a reduce-scatter synchronise meanwhile."""

    equal_gradients: ClassVar[bool] = False
    collective_forward: ClassVar[bool] = True
    fills_models: ClassVar[bool] = True
    module: FullyShardedDDP

    def wrap(self, model: nn.Module, device: torch.device, on_ready: Callable[[], None] = lambda: None) -> nn.Module:
        """Take up the model, a block at a time."""
        self.on_ready = on_ready
        options = options_of(self.settings, FsdpOptions)
        self.module = FullyShardedDDP(
            model,
            torch.bfloat16 if options.gather_bf16 else None,
            device=device,
            wire=self.wire,
            on_ready=on_ready,
            waiting=self.waiting,
            reshard=options.reshard,
        )
        self.model = model
        return self.module

    def _wrapped(self, model: nn.Module) -> nn.Module:
        raise NotImplementedError("taken up block by block")

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """Over this rank's shards as plain tensors, as torch knows not every fused kernel for its own."""
        self._pieces = {each: nn.Parameter(_local(each), each.requires_grad) for each in parameters}
        return factory(self._pieces.values())

    @torch.no_grad()
    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The step on the shards."""
        for parameter, piece in self._pieces.items():
            piece.data, piece.grad = _local(parameter), None if parameter.grad is None else _local(parameter.grad)
        precision.step(optimizer)
        self.module.zero_grad()

    def accumulating(self) -> AbstractContextManager[None]:
        """The module's `no_sync`."""
        return self.module.no_sync()

    def finish(self) -> None:
        """The module's `finish_gradient_synchronization`."""
        self.module.finish_gradient_synchronization()

    def gradient_norm(self) -> Tensor:
        """Over all shards."""
        norm: Tensor = nn.utils.get_total_norm(self.module.shards)
        return self.norm_over_shards(norm.to(next(self.module.parameters()).dtype))

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The module, which gathers its blocks as in training."""
        yield self.module
        self.module.reshard()

    def full_state(self) -> dict[str, Tensor] | None:
        """Gathered parameter by parameter."""
        state = {}
        for name, whole in self.module.whole():
            if self.wire.rank == 0:
                state[name] = whole.to("cpu", copy=True)
        return state if self.wire.rank == 0 else None

    def state_alone(self) -> None:
        """No rank has it whole."""

    def close(self) -> None:
        """Let go of the module, which holds the process group."""
        for name in ("module", "model", "_pieces"):
            self.__dict__.pop(name, None)
        gc.collect()
        super().close()


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    assert isinstance(tensor, DTensor), "sharded"
    local: Tensor = tensor.to_local()
    return local.detach()

"""The interface of a strategy that synchronises gradients, and the strategy of virtual ranks.

Files of plug-ins import this module while the configuration is still being assembled from what they register.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.config.ranks import Ranks, ranks_under
from dynbench.runs.records import Column
from dynbench.wire.base import NullWire, Wire

if TYPE_CHECKING:
    from dynbench.config.schema import Sync


OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
"""Builds an optimizer over the parameters that it is given."""


class Stepper(Protocol):
    """What takes an optimizer's step, with the loss scaler that fp16 needs."""

    def step(self, optimizer: Optimizer) -> None:
        """One step on the unscaled gradients, or none where they overflowed on any rank that has to agree.

        Where `train.max_grad_norm` is set it asks for `gradient_norm` and scales what `optimizer` holds.
        """
        ...


class Strategy(ABC):
    """Turns every worker's local gradients into their mean over workers, from the wrapped model to its saved state.

    A session goes: `wrap`, `build_optimizer`, then steps, at last `close`. In a step the loop runs the micro-batches
    through `module`, all backward passes but the last inside `accumulating()`, then calls `finish()` and `step()`. Once
    per step, from any thread, a strategy calls `on_ready` at the moment this rank's last local gradient is complete
    and before its transfer begins: time before it is compute, time after it is sync.

    What it waits for in a forward pass or in `step` it does within `waiting()`, so that this too is sync.

    Where some ranks serve the others, their loop calls `serve` in place of the micro-batches and of `finish`; all else
    is called on them too.

    Args:
        settings: the `sync` section; None for the defaults.
        wire: how it talks to the other ranks; None for the default process group. `close` closes it.
    """

    equal_gradients: ClassVar[bool]
    """Whether every rank holds the same gradients after `finish`; if not, the loss scalers have to agree."""

    steps_apart: ClassVar[bool] = False
    """Whether a rank goes on to its next step without the others: where all know the plan, they exchange nothing
    about a step, neither what its samples weigh nor whether gradients overflowed."""

    fills_models: ClassVar[bool] = False
    """Whether `wrap` takes a model without values, on the meta device, from all ranks but the first."""

    collective_forward: ClassVar[bool] = False
    """Whether every forward pass talks to the other ranks, so that all have to run equally many."""

    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns that it adds to a rank's rows."""

    timed: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Of these, in milliseconds, what a `worker` takes for its messages, and what a `server` does."""

    model: nn.Module
    """The model as it was given, on its device where `wrap` puts it there whole."""

    module: nn.Module
    """What forward is called on."""

    def __init__(self, settings: Sync | None = None, wire: Wire | None = None) -> None:
        if settings is None:
            from dynbench.config.schema import Sync

            settings = Sync()
        self.settings = settings
        self.wire: Wire = Wire() if wire is None else wire
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def ranks(self) -> Ranks:
        """Who trains, as the registry has it of `settings.name`."""
        return ranks_under(self.settings.name, self.wire.world_size)

    def wrap(self, model: nn.Module, device: torch.device, on_ready: Callable[[], None] = lambda: None) -> nn.Module:
        """Take up the model and return `module`; strategies that move it block by block override this.

        Args:
            model: on the CPU, equal weights on every rank, or none where it `fills_models`.
            device: where it shall be.
            on_ready: notes the moment; must not be delayed, must not synchronise the device.
        """
        self.on_ready = on_ready
        self.model = model.to(device)
        self.module = self._wrapped(self.model)
        return self.module

    @abstractmethod
    def _wrapped(self, model: nn.Module) -> nn.Module:
        """What forward is called on, of a model on its device."""

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """The optimizer of this rank; strategies that shard its state give the factory their part."""
        return factory(parameters)

    def accumulating(self) -> AbstractContextManager[None]:
        """Inside it gradients are added up locally and nothing is sent; here nothing is sent in any backward pass.

        A strategy whose backward passes send overrides it; `dynbench sync check` finds one that forgot.
        """
        return nullcontext()

    @abstractmethod
    def finish(self) -> None:
        """Return when all gradients are synchronised (on CUDA: when that is queued on the current stream)."""

    def serve(self) -> None:
        """On a rank that trains nothing: a step of the workers, up to its own `step`.

        Raises:
            NotImplementedError: every rank trains.
        """
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The optimizer's step, and what has to travel after it."""
        precision.step(optimizer)

    def clear_gradients(self, optimizer: Optimizer) -> None:
        """Between steps: drop the gradients that `optimizer` stepped with."""
        optimizer.zero_grad()

    def drain(self) -> None:  # noqa: B027  # most leave nothing running
        """Wait for what still runs for this model in the background; called within the last step of an arm's turn."""

    def buffers(self) -> Iterable[Tensor]:
        """What it holds between steps besides parameters, their gradients, and what the optimizer keeps."""
        return ()

    def gradient_norm(self) -> Tensor:
        """The 2-norm of the whole mean gradient, a scalar, the same on every rank that computes it.

        It is called in a step, on every rank that calls `Stepper.step`, once gradients are unscaled. Here every rank
        holds the whole gradient; strategies whose ranks hold shards of it return `norm_over_shards` of their own's.
        """
        return gradient_norm(self.model.parameters())

    def norm_over_shards(self, own: Tensor) -> Tensor:
        """The norm over all ranks' shards, from the norm of this rank's own, a scalar; a collective."""
        norms = own.new_zeros(self.wire.world_size)
        self.wire.gather(norms, own.reshape(1)).wait()
        return nn.utils.get_total_norm([norms])

    def evaluators(self) -> Sequence[int]:
        """The ranks that share an evaluation: those that train."""
        return range(self.ranks.servers, self.ranks.world_size)

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Yields the module to evaluate, without gradients and not in a step."""
        yield self.model

    def full_state(self) -> dict[str, Tensor] | None:
        """The whole model's state on rank 0, copied to the CPU; None on the others. All ranks call it."""
        return state_on_cpu(self.model) if self.wire.rank == 0 else None

    def state_alone(self) -> dict[str, Tensor] | None:
        """As `full_state`, but without the others, which may have stopped; the model may be an earlier one.

        Returns:
            None also on rank 0, where it has no whole trained model without them.
        """
        return self.full_state()

    def row(self) -> Mapping[str, object]:
        """The values of `columns` for the step that ended."""
        return {}

    def close(self) -> None:
        """Let go of the model and of the wire, which must not outlive the loop."""
        self.wire.close()


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The 2-norm over all gradients that these parameters have, a scalar on their device."""
    return nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def state_on_cpu(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's parameters and buffers."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}


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

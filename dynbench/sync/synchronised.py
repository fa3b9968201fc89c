"""Modules that average gradients over ranks after the backward pass: one message per parameter, or one for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor, nn

from dynbench.errors import UsageError
from dynbench.sync.shared_model import (
    flat_like,
    refuse_sparse,
    share_model,
    trained_parameters,
    unused_everywhere,
    view_like,
    wire_for,
)
from dynbench.wire.base import Wire
from dynbench.wire.segment import lay_out


class SynchronisedModule(nn.Module, ABC):
    """A module whose parameters' gradients are the means over ranks once `finish_gradient_synchronization` returns.

    Every rank gets rank 0's parameters and buffers at construction. Tied parameters count once, frozen ones are left
    alone. A parameter that no rank used keeps a gradient of None; where some ranks used it, it counts as zeros on the
    others. Nothing has to be called at the start of a batch.

    Args:
        module: the same on every rank but for its values, on its device.
        wire: how it talks to the other ranks; None for the default process group.
        on_ready: called once a step, from any thread, when this rank's last gradient is complete and before it is sent.

    Raises:
        UsageError: parameters or buffers differ between ranks in number, shape, layout or type.
    """

    module: nn.Module

    def __init__(
        self, module: nn.Module, wire: Wire | None = None, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.module = module
        self._wire = wire_for(next(module.parameters(), torch.empty(0))) if wire is None else wire
        self._on_ready = on_ready
        self._sends = True
        share_model(module, self._wire)
        self._trained = trained_parameters(module)
        self._device = next(module.parameters(), torch.empty(0)).device
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]

    def forward(self, *inputs: object, **kwargs: object) -> object:
        """The module's."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside it add up gradients on this rank and send nothing."""
        before, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = before

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """Average what is not yet averaged; called once between the last backward pass and the optimizer's step.

        Raises:
            UsageError: a gradient that is not of this step, or a parameter that was frozen before.
        """
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise UsageError(f"{name} was frozen when it was wrapped and is trained now", "Wrap the module anew.")
        self._average()

    @abstractmethod
    def _average(self) -> None:
        """Turn every gradient into its mean over ranks, or leave it None where no rank has one."""

    def close(self) -> None:
        """Let go of what calls back into this object."""

    def _unused(self) -> frozenset[int]:
        """Parameters that no rank has a gradient of, by their place in `_trained`; a collective, equal on all ranks."""
        used = [place for place, (_, parameter) in enumerate(self._trained) if parameter.grad is not None]
        return unused_everywhere(used, len(self._trained), self._wire, self._device)


class NaiveDDP(SynchronisedModule):
    """Data parallelism as it is first written down: nothing overlaps, and every parameter is a message of its own."""

    def _average(self) -> None:
        self._on_ready()
        unused = self._unused()
        for index, (name, parameter) in enumerate(self._trained):
            if index not in unused:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                flat = flat_like(parameter.grad, parameter)
                self._wire.mean(flat, lay_out([(name, parameter.shape)])).wait()
                if flat.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.copy_(view_like(flat, parameter))


Named = Sequence[tuple[str, nn.Parameter]]


class FlatDDP(SynchronisedModule):
    """Data parallelism in one message, or one for each type of parameters: copied into one, averaged, copied back."""

    def _average(self) -> None:
        self._on_ready()
        unused = self._unused()
        used = [each for index, each in enumerate(self._trained) if index not in unused]
        kinds = sorted(used, key=lambda each: str(each[1].dtype))
        for _, kind in groupby(kinds, key=lambda each: each[1].dtype):
            named = list(kind)
            flat = self.flatten(named)
            self._wire.mean(flat, lay_out((name, p.shape) for name, p in named)).wait()
            self.unflatten(flat, named)

    def flatten(self, named: Named) -> Tensor:
        """Their gradients one after the other, shape [n]; zeros for one that this rank lacks."""
        given = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in named]
        for gradient in given:
            refuse_sparse(gradient)
        return torch.cat([gradient.reshape(-1) for gradient in given])

    def unflatten(self, flat: Tensor, named: Named) -> None:
        """Back to the gradients."""
        for segment, (_, parameter) in zip(lay_out((name, p.shape) for name, p in named), named, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(segment.of(flat))

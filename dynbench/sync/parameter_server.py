"""A synchronous parameter server: the first rank holds the parameters and updates them, the others train.

Workers push their gradients after the backward pass and pull what the server made of them after its step (Li et al.,
Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014; here in lock-step, with one server).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.runs.columns import Column
from dynbench.sync.base import Stepper, Strategy
from dynbench.sync.one_model import share_model, trained_parameters

SERVER = 0


class ParameterServer(Strategy):
    """What both kinds of messages have in common.

    The server averages gradients over workers, and runs no forward pass in training: buffers that one changes, as of
    batch norm, are pushed before an evaluation or a save, and weighted by the rows that each worker has run since. The
    server alone evaluates.
    """

    equal_gradients: ClassVar[bool] = True
    collective_state: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("messages", "integer", "", "Sent to other ranks, and received from them."),
    )

    def _wrapped(self, model: nn.Module) -> nn.Module:
        share_model(model, self.wire)
        self._trained = [parameter for _, parameter in trained_parameters(model)]
        kept, parameters = model.state_dict(keep_vars=True), dict(model.named_parameters(remove_duplicate=False))
        self._buffers: list[Tensor] = [tensor for name, tensor in kept.items() if name not in parameters]
        self._rows = torch.zeros(1, dtype=torch.float64, device=next(model.parameters()).device)
        self._messages = 0
        model.register_forward_pre_hook(self._count_rows, with_kwargs=True)
        return model

    @property
    def _serves(self) -> bool:
        return self.ranks.serves(self.wire.rank)

    def accumulating(self) -> AbstractContextManager[None]:
        """Nothing is sent before `finish`."""
        return nullcontext()

    def finish(self) -> None:
        """Push the gradients, zeros for one that there is none of, and which of them there are."""
        self.on_ready()
        with torch.no_grad():
            given = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
            used = torch.tensor([float(p.grad is not None) for p in self._trained]).to(self._trained[0])
            self._push([used, *given], SERVER)

    @torch.no_grad()
    def serve(self) -> None:
        """Average what the workers push; a parameter that none of them used has no gradient."""
        total = [torch.zeros_like(each) for each in self._trained]
        used = torch.zeros(len(self._trained)).to(self._trained[0])
        for rank in self._workers():
            theirs, *gradients = self._pull([torch.zeros_like(used), *map(torch.zeros_like, total)], rank)
            used += theirs
            torch._foreach_add_(total, gradients)
        torch._foreach_div_(total, self.ranks.workers)
        for parameter, mean, count in zip(self._trained, total, used.tolist(), strict=True):
            parameter.grad = mean if count else None

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The server's step, after which the workers pull its parameters."""
        held = [parameter.detach() for parameter in self._trained]
        if self._serves:
            precision.step(optimizer)
        with self.waiting():
            if not self._serves:
                torch._foreach_copy_(held, self._pull([each.clone() for each in held], SERVER))
                return
            for rank in self._workers():
                self._push(held, rank)

    def evaluators(self) -> Sequence[int]:
        """The server, which has the parameters."""
        return [SERVER]

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The server's model with the workers' buffers; every rank calls it."""
        self._push_buffers()
        yield self.model

    def full_state(self) -> dict[str, Tensor] | None:
        """The server's."""
        self._push_buffers()
        return super().full_state()

    def row(self) -> Mapping[str, object]:
        """The messages of the step that ended."""
        messages, self._messages = self._messages, 0
        return {"messages": messages}

    def _workers(self) -> range:
        return range(self.ranks.servers, self.ranks.world_size)

    @torch.no_grad()
    def _push_buffers(self) -> None:
        """The workers' buffers to the server: means weighted by rows, of whole numbers the greatest."""
        if not self._buffers:
            return
        if not self._serves:
            self._push([self._rows, *self._buffers], SERVER)
            self._rows.zero_()
            return
        pulled = [
            self._pull([self._rows.clone(), *(each.clone() for each in self._buffers)], rank)
            for rank in self._workers()
        ]
        rows = torch.cat([theirs[0] for theirs in pulled])
        if not rows.any():
            return
        for buffer, *theirs in zip(self._buffers, *(each[1:] for each in pulled), strict=True):
            stacked = torch.stack(theirs)
            if buffer.is_floating_point():
                weights = (rows / rows.sum()).to(stacked).view(-1, *[1] * buffer.dim())
                buffer.copy_((stacked * weights).sum(0))
            else:
                buffer.copy_(stacked.amax(0))

    def _count_rows(self, module: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        if module.training and torch.is_grad_enabled():
            tensors = [each for each in (*inputs, *named.values()) if isinstance(each, Tensor) and each.dim()]
            self._rows += len(tensors[0]) if tensors else 1

    @abstractmethod
    def _push(self, tensors: Sequence[Tensor], to: int) -> None:
        """Send tensors to a rank, which pulls as many of the same shapes and types."""

    @abstractmethod
    def _pull(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        """What a rank pushes, into these tensors."""

    def _send(self, tensor: Tensor, to: int) -> None:
        self._messages += 1
        self.wire.send(tensor.contiguous(), to).wait()

    def _receive(self, tensor: Tensor, source: int) -> Tensor:
        self._messages += 1
        received = tensor.contiguous()
        self.wire.receive(received, source).wait()
        return received


class PerTensor(ParameterServer):
    """One message per tensor."""

    def _push(self, tensors: Sequence[Tensor], to: int) -> None:
        for tensor in tensors:
            self._send(tensor, to)

    def _pull(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        return [self._receive(tensor, source) for tensor in tensors]


class InOne(ParameterServer):
    """One message per direction and type."""

    def _push(self, tensors: Sequence[Tensor], to: int) -> None:
        for kind in _kinds(tensors):
            self._send(torch.cat([tensor.reshape(-1) for tensor in tensors if tensor.dtype == kind]), to)

    def _pull(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        found = list(tensors)
        for kind in _kinds(tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == kind]
            flat = self._receive(torch.cat([tensors[place].reshape(-1) for place in places]), source)
            parts = torch.split(flat, [tensors[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                found[place] = part.view(tensors[place].shape)
        return found


def _kinds(tensors: Sequence[Tensor]) -> list[torch.dtype]:
    return list(dict.fromkeys(tensor.dtype for tensor in tensors))

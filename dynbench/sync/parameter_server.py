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

from dynbench.clock import clock_for
from dynbench.runs.records import Column
from dynbench.sync.base import Stepper, Strategy
from dynbench.sync.synchronised import share_model, trained_parameters
from dynbench.wire.traffic import Spans

SERVER = 0
WAITING = "peer_wait_ms"


class ParameterServer(Strategy):
    """What both kinds of messages have in common.

    The server averages gradients over workers, and runs no forward pass in training: buffers that one changes, as of
    batch norm, are pushed before an evaluation or a save, and weighted by the rows that each worker has run since. The
    server alone evaluates.
    """

    equal_gradients: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("messages", "integer", "", "Sent to other ranks in the step, and received from them."),
        Column("push_ms", "number", "ms", "Of a worker: pushing its gradients to the server."),
        Column("pull_ms", "number", "ms", "Of a worker: pulling the parameters from the server."),
        Column("receive_ms", "number", "ms", "Of a server: receiving the gradients of all workers."),
        Column("average_ms", "number", "ms", "Of a server: adding these up and dividing; its step is in optimizer_ms."),
        Column("send_ms", "number", "ms", "Of a server: sending the parameters to all workers."),
        Column(
            WAITING,
            "number",
            "ms",
            "Of these exchanges, until the first message was through, a small one: what the other side was waited for, "
            "and no transfer. Empty where an exchange is one message, which does not tell.",
        ),
    )
    timed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "worker": ("push_ms", "pull_ms"),
        "server": ("receive_ms", "average_ms", "send_ms"),
    }
    tells_waiting: ClassVar[bool]
    """Whether an exchange opens with a message that is small beside the others."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        share_model(model, self.wire)
        self._trained = [parameter for _, parameter in trained_parameters(model)]
        state, parameters = model.state_dict(keep_vars=True), dict(model.named_parameters(remove_duplicate=False))
        self._buffers: list[Tensor] = [tensor for name, tensor in state.items() if name not in parameters]
        device = next(model.parameters()).device
        self._rows = torch.zeros(1, dtype=torch.float64, device=device)
        self._times, self._messages = Spans(clock_for(device)), 0
        model.register_forward_pre_hook(self._count_rows, with_kwargs=True)
        return model

    @property
    def _serves(self) -> bool:
        return self.ranks.serves(self.wire.rank)

    def finish(self) -> None:
        """Push the gradients, zeros for one that there is none of, and first which of them there are."""
        self.on_ready()
        with torch.no_grad():
            given = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
            used = torch.tensor([float(p.grad is not None) for p in self._trained]).to(self._trained[0])
            with self._times.of("push_ms"):
                self._push([used, *given], SERVER)

    @torch.no_grad()
    def serve(self) -> None:
        """Average what the workers push; a parameter that none of them used has no gradient."""
        total = [torch.zeros_like(each) for each in self._trained]
        used = torch.zeros(len(self._trained)).to(self._trained[0])
        for rank in self._workers():
            places = [torch.zeros_like(used), *map(torch.zeros_like, total)]
            with self._times.of("receive_ms"):
                theirs, *gradients = self._pull(places, rank)
            with self._times.of("average_ms"):
                used += theirs
                torch._foreach_add_(total, gradients)
        with self._times.of("average_ms"):
            torch._foreach_div_(total, self.ranks.workers)
            for parameter, mean, count in zip(self._trained, total, used.tolist(), strict=True):
                parameter.grad = mean if count else None

    def step(self, optimizer: Optimizer, precision: Stepper) -> None:
        """The server's step, after which the workers pull its parameters, the smallest first."""
        parameters = [parameter.detach() for parameter in sorted(self._trained, key=Tensor.numel)]
        if self._serves:
            precision.step(optimizer)
        with self.waiting():
            if not self._serves:
                places = [each.clone() for each in parameters]
                with self._times.of("pull_ms"):
                    pulled = self._pull(places, SERVER)
                torch._foreach_copy_(parameters, pulled)
                return
            for rank in self._workers():
                with self._times.of("send_ms"):
                    self._push(parameters, rank)

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

    def state_alone(self) -> dict[str, Tensor] | None:
        """The server's, with the buffers that workers pushed last."""
        return super().full_state()

    def row(self) -> Mapping[str, object]:
        """The messages of the step that ended, and what this side took over them."""
        times, messages, self._messages = self._times.take_ms(), self._messages, 0
        mine = (*self.timed["server" if self._serves else "worker"], *((WAITING,) if self.tells_waiting else ()))
        known = {name: times[name] for name in mine}
        return {"messages": messages, **{column.name: known.get(column.name) for column in self.columns[1:]}}

    def _workers(self) -> range:
        return range(self.ranks.servers, self.ranks.world_size)

    @torch.no_grad()
    def _push_buffers(self) -> None:
        """The workers' buffers to the server: means weighted by rows, of whole numbers the greatest."""
        if not self._buffers:
            return
        messages = self._messages
        if not self._serves:
            self._push([self._rows, *self._buffers], SERVER)
            self._rows.zero_()
        else:
            self._average_buffers()
        self._messages = messages  # these are of no step
        self._times.take_ms()

    def _average_buffers(self) -> None:
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

    def _push(self, tensors: Sequence[Tensor], to: int) -> None:
        """Send tensors to a rank, which pulls as many of the same shapes and types."""
        for place, tensor in enumerate(self._packed(tensors)):
            with self._message(place):
                self.wire.send(tensor.contiguous(), to).wait()

    def _pull(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        """What a rank pushes, into these tensors."""
        received = [tensor.contiguous() for tensor in self._packed(tensors)]
        for place, tensor in enumerate(received):
            with self._message(place):
                self.wire.receive(tensor, source).wait()
        return self._unpacked(received, tensors)

    def _message(self, place: int) -> AbstractContextManager[None]:
        """In it, a message of an exchange; until the first is through, the other side is waited for."""
        self._messages += 1
        return self._times.of(WAITING) if place == 0 and self.tells_waiting else nullcontext()

    @abstractmethod
    def _packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The messages that these tensors are sent in."""

    @abstractmethod
    def _unpacked(self, messages: list[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of received messages, in the shapes of these."""


class PerTensor(ParameterServer):
    """One message per tensor."""

    tells_waiting: ClassVar[bool] = True

    def _packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def _unpacked(self, messages: list[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        return messages


class InOne(ParameterServer):
    """One message per direction and type."""

    tells_waiting: ClassVar[bool] = False

    def _packed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        kinds = _kinds(tensors)
        return [torch.cat([tensor.reshape(-1) for tensor in tensors if tensor.dtype == kind]) for kind in kinds]

    def _unpacked(self, messages: list[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        parts = {
            kind: iter(torch.split(message, [tensor.numel() for tensor in tensors if tensor.dtype == kind]))
            for kind, message in zip(_kinds(tensors), messages, strict=True)
        }
        return [next(parts[tensor.dtype]).view(tensor.shape) for tensor in tensors]


def _kinds(tensors: Sequence[Tensor]) -> list[torch.dtype]:
    return list(dict.fromkeys(tensor.dtype for tensor in tensors))

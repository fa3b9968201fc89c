"""Modules that average gradients over ranks after the backward pass, and models that are the same on all ranks.

Parameters are compared with those of the other ranks, then all get the values of the first. Gradients are sent in one
message per parameter, or one for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynbench.errors import UsageError
from dynbench.wire.base import Wire
from dynbench.wire.channel import Channel
from dynbench.wire.segment import lay_out

Described = tuple[str, str, tuple[int, ...], tuple[int, ...], str]
"""Name, what it is, shape, strides and type of a parameter or buffer."""


def wire_for(tensor: Tensor) -> Wire:
    """A wire over the default process group for tensors where this one is.

    Raises:
        UsageError: there is no process group.
    """
    if not dist.is_initialized():
        raise UsageError("no process group to synchronise gradients in", "Call torch.distributed.init_process_group.")
    return Wire(Channel(device=tensor.device))


def share_model(module: nn.Module, wire: Wire) -> None:
    """Give every rank the parameters and buffers of the first; a collective.

    Raises:
        UsageError: on some rank parameters or buffers are others in number, shape, layout or type; raised on all ranks.
    """
    check_same_model(module, wire)
    share_tensors([*module.parameters(), *module.buffers()], wire)


@torch.no_grad()
def share_tensors(tensors: Iterable[Tensor], wire: Wire) -> None:
    """Give every rank the values of the first; a collective."""
    for tensor in tensors:
        if tensor.numel():
            sent = tensor.detach().contiguous()
            wire.broadcast(sent, 0).wait()
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)


def check_same_model(module: nn.Module, wire: Wire) -> None:
    """Refuse parameters and buffers that differ between ranks in number, shape, layout or type, on all ranks.

    A collective. Names may differ, but of buffers, which may lie in another order.

    Raises:
        UsageError: they do.
    """
    parameters = [(name, "trained" if p.requires_grad else "frozen", p) for name, p in module.named_parameters()]
    tensors = [*parameters, *((name, f"buffer {name}", buffer) for name, buffer in module.named_buffers())]
    mine = [(name, kind, tuple(each.shape), each.stride(), str(each.dtype)) for name, kind, each in tensors]
    everyone: list[Sequence[Described]] = [mine] * dist.get_world_size(wire.group)
    dist.all_gather_object(everyone, mine, group=wire.group)
    for rank, theirs in enumerate(everyone):
        for first, other in zip_longest(everyone[0], theirs):
            if first is None or other is None or first[1:] != other[1:]:
                raise UsageError(
                    f"the models of ranks 0 and {rank} differ: {_said(first)} on rank 0, {_said(other)} on rank "
                    f"{rank} ({len(everyone[0])} and {len(theirs)} parameters and buffers)",
                    "Build the same model on every rank.",
                )


def _said(found: Described | None) -> str:
    if found is None:
        return "none"
    name, kind, shape, strides, dtype = found
    what = "buffer" if kind.startswith("buffer") else kind
    return f"{name} ({what}) of shape {list(shape)}, strides {list(strides)} and type {dtype}"


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that get gradients, a tied one once, in the module's order."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.numel()]


def flat_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The elements of a tensor of a parameter's shape in the order of the parameter's memory, shape [n].

    A view where the tensor lies so, else a copy.

    Raises:
        UsageError: a sparse tensor.
    """
    refuse_sparse(tensor)
    if tensor.stride() == parameter.stride() and is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    flat = tensor.new_empty(tensor.numel())
    view_like(flat, parameter).copy_(tensor)
    return flat


def refuse_sparse(gradient: Tensor) -> None:
    """Refuse a gradient that is not dense.

    Raises:
        UsageError: it is not.
    """
    if gradient.layout != torch.strided:
        raise UsageError(
            f"a gradient of layout {gradient.layout} cannot be averaged", "Build the embedding with sparse=False."
        )


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie beside each other, in whatever order."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach + 1 == tensor.numel()


def view_like(flat: Tensor, parameter: Tensor) -> Tensor:
    """A part of a flat tensor, shape [n], in the shape of a parameter, and in its strides where that is dense."""
    if is_dense(parameter):
        return flat.as_strided(parameter.shape, parameter.stride())
    return flat.view(parameter.shape)


def unused_everywhere(used: Collection[int], count: int, wire: Wire, device: torch.device) -> frozenset[int]:
    """Of `count` parameters those that no rank has used, by place; a collective, equal on all ranks.

    A rank that has used all knows that there are none, and reads nothing, for which a GPU were waited for.

    Args:
        used: places of those that this rank has used.
        count: of the parameters, equal on all ranks.
        wire: how the ranks tell each other.
        device: where its tensors are.
    """
    if not count:
        return frozenset()
    # Pinned: from other memory the host would wait for what is queued on a GPU, in the middle of the backward pass.
    marks = torch.zeros(count, dtype=torch.uint8, pin_memory=device.type == "cuda")
    marks[list(used)] = 1
    everyone = torch.zeros(wire.world_size * count, dtype=torch.uint8, device=device)
    wire.gather(everyone, marks.to(device, non_blocking=True)).wait()
    if len(used) == count:
        return frozenset()
    seen = everyone.view(wire.world_size, -1).amax(0).tolist()
    return frozenset(place for place, mark in enumerate(seen) if not mark)


def fillable(module: nn.Module) -> bool:
    """Whether all that has no values is a parameter or a buffer, which can be given some."""
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    loose = (value for each in module.modules() for value in vars(each).values() if isinstance(value, Tensor))
    return all(id(tensor) in known for tensor in loose if tensor.is_meta)


def share_what_is_trained(module: nn.Module, wire: Wire) -> None:
    """Let a module without values train what the first rank's trains, which may have tried it; a collective."""
    parameters = list(module.parameters())
    mine = [parameter.requires_grad for parameter in parameters]
    everyone = [mine] * dist.get_world_size(wire.group)
    dist.all_gather_object(everyone, mine, group=wire.group)
    if len(everyone[0]) == len(parameters):
        for parameter, wanted in zip(parameters, everyone[0], strict=True):
            if parameter.is_meta:
                parameter.requires_grad_(wanted)


def give_memory(part: nn.Module, whole: nn.Module, device: torch.device) -> None:
    """Give what a part of a model lacks memory for its values, whatever they are; what is one tensor stays one.

    Args:
        part: of `whole`.
        whole: holds it, and perhaps some of its tensors elsewhere too.
        device: where.
    """
    given: dict[int, tuple[Tensor, Tensor]] = {}
    for tensor in (*part.parameters(), *part.buffers()):
        if tensor.is_meta:
            empty = torch.empty_like(tensor, device=device)
            made = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
            given[id(tensor)] = tensor, made
    for module in whole.modules():
        places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for named in places:
            for name, value in named.items():
                if id(value) in given:
                    named[name] = given[id(value)][1]


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

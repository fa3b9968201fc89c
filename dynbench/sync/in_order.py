"""Gradients sent in a fixed order while the backward pass runs: in buckets, or one by one.

Ranks need not complete their gradients in the same order: a rank may leave a parameter unused that another one uses.
So what is sent has a fixed order, and whatever is complete waits for what comes before it. A parameter that no rank
used in some step goes behind all others from then on, where it keeps nothing waiting; all ranks know of it alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.futures import Future

from dynbench.errors import UsageError
from dynbench.sync.synchronised import SynchronisedModule, flat_like, refuse_sparse, view_like
from dynbench.units import bytes_of_mib
from dynbench.wire.base import Wire
from dynbench.wire.channel import nbytes
from dynbench.wire.segment import lay_out

Members = Mapping[int, tuple[str, nn.Parameter]]
"""Name and parameter by place among the trained ones."""


class Part(ABC):
    """Gradients that are sent as one.

    Args:
        members: of these parameters, in their order in what is sent.
        wire: sends them.
    """

    def __init__(self, members: Members, wire: Wire) -> None:
        self.members = members
        self.segments = lay_out((name, parameter.shape) for name, parameter in members.values())
        self.missing = set(members)
        """Members whose gradients have not come in this step."""
        self._wire = wire

    @abstractmethod
    def take_up(self, index: int) -> None:
        """A member's gradient has come; None where this rank has none, which counts as zeros."""

    @abstractmethod
    def send(self) -> Future[Tensor]:
        """Begin to average."""

    @abstractmethod
    def take_back(self, used: Iterable[int]) -> None:
        """The mean is there; the gradients of these members, which some rank has used, become it."""


class InOrder(SynchronisedModule):
    """A synchronised module that sends a part as soon as it, and all before it, are complete."""

    def __init__(
        self, module: nn.Module, wire: Wire | None = None, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(module, wire, on_ready)
        self._behind: frozenset[int] = frozenset()
        self._deal()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, (_, parameter) in enumerate(self._trained)
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @abstractmethod
    def _cut(self, order: Sequence[int]) -> Iterable[Part]:
        """Parts of parameters in this order."""

    def _deal(self) -> None:
        """Cut what is sent: parameters from the last to the first, those behind all others after them."""
        backwards = range(len(self._trained))[::-1]
        first = [index for index in backwards if index not in self._behind]
        last = [index for index in backwards if index in self._behind]
        self._parts = [*self._cut(first), *self._cut(last)]
        self._part_of = {index: part for part in self._parts for index in part.members}
        self._begin()

    def _begin(self) -> None:
        for part in self._parts:
            part.missing = set(part.members)
        self._left = len(self._trained)
        self._sent: list[Future[Tensor]] = []

    @torch.no_grad()
    def _arrived(self, index: int, parameter: Tensor) -> None:
        if not self._sends:
            return
        part = self._part_of[index]
        if index not in part.missing:
            raise UsageError(
                f"{self._trained[index][0]} got a gradient twice in a step",
                "Call finish_gradient_synchronization before the next step, and run all backward passes of a step but "
                "the last inside no_sync().",
            )
        self._take_up(part, index)
        self._left -= 1
        if not self._left:
            self._on_ready()
        self._send_complete()

    def _take_up(self, part: Part, index: int) -> None:
        part.take_up(index)
        part.missing.remove(index)

    def _send_complete(self) -> None:
        while len(self._sent) < len(self._parts) and not self._parts[len(self._sent)].missing:
            self._sent.append(self._parts[len(self._sent)].send())

    def _average(self) -> None:
        if self._left:
            self._on_ready()
        for part in self._parts:
            for index in sorted(part.missing):
                self._take_up(part, index)
        self._send_complete()
        unused = self._unused()
        for part, future in zip(self._parts, self._sent, strict=True):
            future.wait()
            part.take_back(part.members.keys() - unused)
        if unused <= self._behind:
            self._begin()
        else:
            self._behind |= unused
            self._deal()


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


class Bucket(Part):
    """Gradients of one type, one after the other in `flat`, shape [n]; the parameters' own are views into it."""

    def __init__(self, members: Members, wire: Wire) -> None:
        super().__init__(members, wire)
        first = next(parameter for _, parameter in members.values())
        size = self.segments[-1].offset + self.segments[-1].numel
        self.flat = torch.zeros(self._filled_up(size), dtype=first.dtype, device=first.device)
        self._views = {
            index: view_like(self.flat[segment.offset : segment.offset + segment.numel], parameter)
            for segment, (index, (_, parameter)) in zip(self.segments, members.items(), strict=True)
        }

    def _filled_up(self, size: int) -> int:
        """Elements of `flat` for so many of gradients."""
        return size

    def take_up(self, index: int) -> None:
        """Copy it to its place, unless it is there."""
        parameter, view = self.members[index][1], self._views[index]
        if parameter.grad is None:
            view.zero_()
            return
        refuse_sparse(parameter.grad)
        if parameter.grad.data_ptr() != view.data_ptr() or parameter.grad.stride() != view.stride():
            view.copy_(parameter.grad)
            parameter.grad = view

    def send(self) -> Future[Tensor]:
        """Begin to average the bucket."""
        return self._wire.mean(self.flat, self.segments)

    def take_back(self, used: Iterable[int]) -> None:
        """Give it to parameters that had none."""
        for index in used:
            if (parameter := self.members[index][1]).grad is None:
                parameter.grad = self._views[index]


class BucketedDDP(InOrder):
    """Data parallelism in buckets of parameters from the last to the first.

    Args:
        module: as in `SynchronisedModule`.
        bucket_size_mb: most that a bucket holds, MiB, unless it is one parameter that is larger; None is one bucket for
            each type of parameters.
        wire: as there.
        on_ready: as there.

    Raises:
        UsageError: a size that is no number above 0; or as there.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_size_mb: float | None = 25.0,
        wire: Wire | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        if bucket_size_mb is not None and not 0 < bucket_size_mb < math.inf:
            raise UsageError(
                f"bucket_size_mb: {bucket_size_mb} MiB, expected a number above 0", "25 is usual; None is one bucket."
            )
        self._limit = None if bucket_size_mb is None else bytes_of_mib(bucket_size_mb)
        super().__init__(module, wire, on_ready)

    @property
    def buckets(self) -> list[list[str]]:
        """Names of the parameters in each, in the order in which they are sent."""
        return [[name for name, _ in part.members.values()] for part in self._parts]

    def _cut(self, order: Sequence[int]) -> Iterable[Part]:
        return [self._bucket({index: self._trained[index] for index in members}) for members in self._dealt(order)]

    def _bucket(self, members: Members) -> Bucket:
        return Bucket(members, self._wire)

    def _dealt(self, order: Sequence[int]) -> Iterator[list[int]]:
        members: list[int] = []
        size = 0
        for index in order:
            parameter = self._trained[index][1]
            if members and (
                self._trained[members[0]][1].dtype != parameter.dtype
                or (self._limit is not None and size + nbytes(parameter) > self._limit)
            ):
                yield members
                members, size = [], 0
            members.append(index)
            size += nbytes(parameter)
        if members:
            yield members

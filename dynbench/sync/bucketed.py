"""Gradients sent in buckets, each as soon as it is full, while the backward pass still runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.futures import Future

from dynbench.errors import UsageError
from dynbench.sync.in_order import InOrder, Members, Part
from dynbench.sync.one_model import refuse_sparse, view_like
from dynbench.units import bytes_of_mib
from dynbench.wire.base import Wire
from dynbench.wire.channel import nbytes


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

"""One protocol of all compressors: a tensor becomes a payload of tensors, and payloads become their mean.

For any training loop on plain torch:

    from dynbench.compress import TopK

    codec = TopK(ratio=0.01)
    payload = codec.compress(gradient)
    payload.nbytes                      # all of it: values, indices, scales
    codec.decompress(payload)           # of the gradient's shape and type
    codec.aggregate([payload, other])   # the mean, as every rank computes it

`dynbench.compress.mean` does so between the ranks of a process group.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

Way = Literal["gather", "two_stage", "sum"]
"""How payloads are combined. `gather`: every rank gets all of them. `two_stage`: every rank averages a part and
compresses the mean anew, and all get it. `sum`: they are added up on the way, in their own type."""

CHUNK = 2**17
"""Elements that element-wise work is done on at a time, so that what lies between two passes stays in the cache."""
LEAST = 1e-30
"""Scales are not below it, as what they are divided by would overflow."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a payload: its type and its elements."""

    dtype: torch.dtype
    length: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.length * self.dtype.itemsize


Fields = tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What both ends know beside the payload.

    Args:
        seed: equal on all ranks, another one for every tensor and step.
        rank: whose payload it is.
        ranks: their number (G).
        summed: payloads that were added up in it.
        weight: what the rank's samples count.
        number: the greatest of the ranks' `measure`, a scalar of float64.
    """

    seed: int = 0
    rank: int = 0
    ranks: int = 1
    summed: int = 1
    weight: float = 1.0
    number: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """What travels in place of a tensor of a shape and type."""

    tensors: tuple[Tensor, ...]
    shape: torch.Size
    dtype: torch.dtype
    known: Known = field(default_factory=Known)

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Codec(ABC):
    """A way to write a tensor in fewer bytes.

    Subclasses write flat tensors of float32, shape [n], n above 0. What is not finite must stay so: if an element is
    infinite or no number, some element of what is decoded is.
    """

    name: str
    """As it is called in messages."""
    way: ClassVar[Way] = "gather"
    measures: bool = False
    """Whether ranks agree on a number for every tensor first, by `measure`: one more collective."""
    contractive: bool = True
    """Whether what it leaves out is less than what there was, as error feedback needs."""
    leaves_out: bool = False
    """Whether it leaves out so much that it is used with error feedback by default."""

    @abstractmethod
    def fields(self, n: int, known: Known) -> Fields:
        """The payload of n elements; one that is summed has a single field."""

    @abstractmethod
    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Write `values`, shape [n], which stay as they are, into tensors of `fields`."""

    @abstractmethod
    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Read a payload into `out`, shape [n]; of one that was summed the mean."""

    def measure(self, values: Tensor) -> Tensor:
        """The number that this rank brings to what they agree on, a scalar; called for codecs that agree on one."""
        raise NotImplementedError(f"{self.name} agrees on nothing")

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        """Add what it stands for, times a factor, to `total`, shape [n]."""
        decoded = torch.empty_like(total)
        self.decode(payload, known, decoded)
        total.add_(decoded, alpha=factor)

    def mean_of(self, payloads: Sequence[Sequence[Tensor]], known: Known, out: Tensor) -> None:
        """The mean of every rank's payload into `out`, shape [n], the same to the bit wherever it is computed."""
        out.zero_()
        for rank, payload in enumerate(payloads):
            self.add(payload, replace(known, rank=rank), out, 1 / len(payloads))

    def kept(self, n: int, known: Known) -> int:
        """Of n elements, those that are sent."""
        return n

    def index_bytes(self, n: int, known: Known) -> int:
        """Of the payload, what says which these are."""
        return 0

    def check_ranks(self, ranks: int) -> None:  # noqa: B027  # most work with any number
        """Refuse a number of ranks that it cannot work with.

        Raises:
            UsageError: it cannot.
        """

    def compress(self, tensor: Tensor, known: Known | None = None) -> Payload:
        """The payload of any tensor of real numbers.

        Args:
            tensor: of any shape and layout.
            known: None is one rank alone.

        Raises:
            UsageError: as `check_ranks`.
        """
        known = Known() if known is None else known
        self.check_ranks(known.ranks)
        values = tensor.detach().reshape(-1).to(torch.float32)
        if self.measures and known.number is None:
            number = self.measure(values) if len(values) else torch.zeros((), device=tensor.device)
            known = replace(known, number=number.double())
        found = tuple(
            torch.empty(each.length, dtype=each.dtype, device=tensor.device) for each in self.fields(len(values), known)
        )
        if len(values):
            self.encode(values, known, found)
        return Payload(found, tensor.shape, tensor.dtype, known)

    def decompress(self, payload: Payload) -> Tensor:
        """What it stands for, of the shape and type of what was compressed."""
        return self._read(payload, lambda out: self.decode(payload.tensors, payload.known, out))

    def aggregate(self, payloads: Sequence[Payload]) -> Tensor:
        """The mean of what all ranks sent, in order of rank."""
        first = payloads[0]
        if self.way == "sum":
            total = tuple(
                torch.stack(each).sum(0, dtype=each[0].dtype) for each in zip(*_tensors(payloads), strict=True)
            )
            known = replace(first.known, summed=len(payloads))
            return self._read(first, lambda out: self.decode(total, known, out))
        return self._read(first, lambda out: self.mean_of(_tensors(payloads), first.known, out))

    def _read(self, payload: Payload, decode: Callable[[Tensor], None]) -> Tensor:
        device = payload.tensors[0].device if payload.tensors else torch.device("cpu")
        out = torch.empty(math.prod(payload.shape), device=device)
        if len(out):
            decode(out)
        return out.view(payload.shape).to(payload.dtype)


def greatest(values: Tensor) -> Tensor:
    """The greatest absolute value, a scalar; no number where one is none. Norms of torch take ten times as long."""
    low, high = torch.aminmax(values)
    return torch.maximum(high, -low)


def _tensors(payloads: Sequence[Payload]) -> list[Sequence[Tensor]]:
    return [payload.tensors for payload in payloads]


class Whole(Codec):
    """A tensor as it is, in a type of its own."""

    name = "none"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def fields(self, n: int, known: Known) -> Fields:
        """The elements."""
        return (Field(self.dtype, n),)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Copied."""
        out[0].copy_(values)

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Copied; of a sum the mean."""
        out.copy_(payload[0])
        if known.summed > 1:
            out.div_(known.summed)


@contextmanager
def in_float32(codec: Codec, place: Tensor) -> Iterator[Tensor]:
    """Where a payload is decoded for a place, shape [n]: in float32, unless it holds a tensor as it was."""
    if place.dtype == torch.float32 or isinstance(codec, Whole):
        yield place
    else:
        decoded = torch.empty(place.shape, device=place.device)
        yield decoded
        place.copy_(decoded)

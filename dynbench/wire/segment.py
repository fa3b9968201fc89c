"""Parameters as segments of a flat gradient, their parts in its pieces, and named ranges of a profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

PREFIX = "dynbench::"
"""Of every name."""


@contextmanager
def named_range(name: str, device: torch.device) -> Iterator[None]:
    """What runs inside has this name in a profile; it takes a few microseconds where nobody looks."""
    with torch.profiler.record_function(f"{PREFIX}{name}"):
        if device.type != "cuda":
            yield
            return
        torch.cuda.nvtx.range_push(f"{PREFIX}{name}")  # type: ignore[no-untyped-call]  # torch's is untyped
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]  # as above


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter's part of a piece of a flat gradient.

    Args:
        name: the parameter's.
        start: its first element in the parameter.
        offset: the same in the flat gradient.
        numel: its elements.
        whole: the parameter's.
    """

    name: str
    start: int
    offset: int
    numel: int
    whole: int

    def of(self, flat: Tensor, begins: int = 0) -> Tensor:
        """This part of `flat`, which begins at an element of the flat gradient; a view, shape [numel]."""
        return flat[self.offset - begins : self.offset - begins + self.numel]


@dataclass(frozen=True, slots=True)
class Segment:
    """One parameter's part of a flat gradient.

    Args:
        name: the parameter's name in the model; what a compressor keeps belongs to it, because the flat gradients that
            a strategy cuts may change from step to step.
        offset: its first element in the flat gradient.
        shape: the parameter's.
    """

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Its elements."""
        return math.prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """This part of `flat`, shape [n], as a view in the parameter's shape."""
        return flat[self.offset : self.offset + self.numel].view(self.shape)

    @property
    def whole(self) -> Part:
        """All of it, as a part of the flat gradient."""
        return Part(self.name, 0, self.offset, self.numel, self.numel)


def lay_out(parameters: Iterable[tuple[str, Sequence[int]]]) -> tuple[Segment, ...]:
    """Segments of named shapes that lie one after the other, from 0 on."""
    segments: list[Segment] = []
    end = 0
    for name, shape in parameters:
        segments.append(Segment(name, end, tuple(shape)))
        end += segments[-1].numel
    return tuple(segments)


def cut(segments: Sequence[Segment], piece: int, pieces: int) -> list[list[Part]]:
    """The parts of pieces of a flat gradient, `piece` elements each; empty segments have none."""
    found: list[list[Part]] = [[] for _ in range(pieces)]
    for segment in segments:
        first, last = segment.offset, segment.offset + segment.numel
        for number in range(first // piece if piece else 0, -(-last // piece) if piece else 0):
            start, end = max(first, number * piece), min(last, (number + 1) * piece)
            if start < end:
                found[number].append(Part(segment.name, start - first, start, end - start, segment.numel))
    return found

"""Parts of a flat gradient, and where their payloads lie in the bytes that one rank sends another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dynbench.compress.codec import Fields
from dynbench.wire.segment import Segment

_ALIGNMENT = 8


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


class Message:
    """Where payloads lie, one after the other, in messages that are all as long as the longest.

    Args:
        pieces: of every message the fields of its payloads.
    """

    def __init__(self, pieces: Sequence[Sequence[Fields]]) -> None:
        self._places: list[list[list[tuple[torch.dtype, int, int]]]] = []
        longest = 1  # none is empty, which back ends refuse
        for piece in pieces:
            end, places = 0, []
            for fields in piece:
                place = []
                for field in fields:
                    end += -end % field.dtype.itemsize
                    place.append((field.dtype, end, end + field.nbytes))
                    end += field.nbytes
                places.append(place)
            self._places.append(places)
            longest = max(longest, end)
        self.nbytes = longest + -longest % _ALIGNMENT
        """Of one message."""

    def payloads(self, message: Tensor, piece: int) -> list[list[Tensor]]:
        """The payloads of a piece, as views into a message of it, of uint8, shape [nbytes]."""
        return [[message[start:end].view(dtype) for dtype, start, end in place] for place in self._places[piece]]

    def row(self, messages: Tensor, number: int) -> Tensor:
        """One of several messages that follow each other."""
        return messages[number * self.nbytes : (number + 1) * self.nbytes]


class Scratch:
    """Memory that is used again by the next message of its size.

    The first touch of new memory costs as much as its use.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, torch.device], Tensor] = {}

    def __call__(self, name: str, size: int, like: Tensor) -> Tensor:
        """So many bytes for a purpose, where a tensor is; they hold what they held."""
        key = (name, size, like.device)
        if key not in self._held:
            self._held[key] = torch.zeros(size, dtype=torch.uint8, device=like.device)
        return self._held[key]

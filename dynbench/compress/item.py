"""A part of a gradient on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dynbench.compress.codec import Codec, Known, Whole
from dynbench.compress.feedback import settle
from dynbench.compress.message import Part


@dataclass
class Item:
    """A part, and how it is sent.

    Attributes:
        values: what is sent of it, shape [numel]: float32, or as it is where it is sent whole.
        feedback: `values` is what is kept, and what was sent is taken from it.
    """

    part: Part
    codec: Codec
    known: Known
    values: Tensor
    feedback: bool = False

    def write(self, payload: Sequence[Tensor]) -> None:
        """Into tensors of the codec's fields."""
        self.codec.encode(self.values, self.known, payload)
        if self.feedback:
            self.codec.add(payload, self.known, self.values, -1.0)
            settle(self.values)

    @contextmanager
    def target(self, out: Tensor, begin: int = 0) -> Iterator[Tensor]:
        """Where it is decoded to: in float32, unless it was sent whole.

        Args:
            out: receives it.
            begin: where `out` begins in the flat gradient.
        """
        place = self.part.of(out, begin)
        if place.dtype == torch.float32 or isinstance(self.codec, Whole):
            yield place
        else:
            decoded = torch.empty(place.shape, device=place.device)
            yield decoded
            place.copy_(decoded)


Items = list[list[Item]]
"""Of every piece of a flat gradient."""

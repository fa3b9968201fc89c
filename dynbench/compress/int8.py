"""Integers that can be summed on the way: one scale for all ranks, and so few levels that no sum overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dynbench.compress.codec import CHUNK, LEAST, Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import CompressedMean
from dynbench.compress.message import pack, packed_bytes, unpack
from dynbench.errors import UsageError
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import Int8Options, int8_levels

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class Int8(Codec):
    """Multiples of a step, from minus to plus the greatest element of all ranks, symmetric around 0.

    Of G ranks each has (2**(num_bits - 1) - 1) // G levels on either side. Four bits go two to a byte, from 0 on, so
    that neither half runs over into the other.

    Args:
        num_bits: of an element on the wire.
    """

    name = "int8"
    way = "sum"
    measures = True

    def __init__(self, num_bits: Literal[4, 8] = 8) -> None:
        self.num_bits = num_bits

    def check_ranks(self, ranks: int) -> None:
        """At least two levels on either side."""
        if int8_levels(self.num_bits, ranks) < 2:
            raise UsageError(
                f"compress.num_bits: {self.num_bits} bits have less than 2 levels for each of {ranks} ranks",
                "Set compress.num_bits to 8." if int8_levels(8, ranks) >= 2 else "Take fp8 or qsgd (compress.name).",
            )

    def fields(self, n: int, known: Known) -> Fields:
        """The levels."""
        if self.num_bits == 8:
            return (Field(torch.int8, n),)
        return (Field(torch.uint8, packed_bytes(n, self.num_bits)),)

    def measure(self, values: Tensor) -> Tensor:
        """The greatest absolute value; infinite where an element is not finite."""
        return greatest(values).nan_to_num(nan=torch.inf, posinf=torch.inf)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """To the nearest level."""
        assert known.number is not None, "agreed on"
        levels = int8_levels(self.num_bits, known.ranks)
        factor = (levels / known.number.clamp(min=LEAST)).float()
        scratch = torch.empty_like(values[:CHUNK])
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            scaled = torch.mul(part, factor, out=scratch[: len(part)]).round_()
            if self.num_bits == 8:
                out[0][start : start + CHUNK].copy_(scaled)
            else:
                ends = packed_bytes(start, self.num_bits), packed_bytes(start + len(part), self.num_bits)
                pack(scaled.add_(levels).to(torch.uint8), self.num_bits, out[0][slice(*ends)])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Levels times the step; of a sum over ranks the mean."""
        assert known.number is not None, "agreed on"
        levels = int8_levels(self.num_bits, known.ranks)
        factor = (known.number / (levels * known.summed)).float()
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            if self.num_bits == 8:
                part.copy_(payload[0][start : start + CHUNK])
            else:
                ends = packed_bytes(start, self.num_bits), packed_bytes(start + len(part), self.num_bits)
                part.copy_(unpack(payload[0][slice(*ends)], self.num_bits, len(part))).sub_(levels * known.summed)
            part.mul_(factor)


def int8(settings: Compress | None = None) -> CompressedMean:
    """The compressor `int8`."""
    return CompressedMean.from_settings(Int8(options_of(settings, Int8Options).num_bits), settings)

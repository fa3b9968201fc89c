"""A few levels per element.

int8: integers that can be summed on the way: one scale for all ranks, and so few levels that no sum overflows. QSGD:
levels between 0 and a bucket's norm, drawn so that their mean is exact (Alistarh et al., NeurIPS 2017). Natural
compression: powers of two, drawn so that their mean is exact (Horvath et al., 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dynbench.compress.base import seed_of, uniform
from dynbench.compress.codec import CHUNK, LEAST, Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import compressor
from dynbench.compress.message import pack, packed_bytes, unpack
from dynbench.errors import UsageError
from dynbench.plugins.compressors import ContractiveOptions, Int8Options, QsgdOptions, int8_levels


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


int8 = compressor(Int8, Int8Options, num_bits="num_bits")


class Qsgd(Codec):
    """In buckets of elements with the greatest absolute value for a norm, as the paper's own experiments have it.

    Args:
        bits: of an element, its sign among them: 2**(bits - 1) - 1 levels on either side of 0.
        bucket: elements that share a norm.
        contractive: rounded to the nearest level, which is biased, but may be used with error feedback.
    """

    name = "qsgd"

    def __init__(self, bits: Literal[2, 4, 8] = 4, bucket: int = 512, contractive: bool = False) -> None:
        self.bits, self.bucket, self.contractive = bits, bucket, contractive
        self._levels = 2 ** (bits - 1) - 1

    def fields(self, n: int, known: Known) -> Fields:
        """Norms, and signed levels counted from the lowest."""
        return Field(torch.float32, -(-n // self.bucket)), Field(torch.uint8, packed_bytes(n, self.bits))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Drawn up or down, or to the nearest."""
        table = nn.functional.pad(values, (0, -len(values) % self.bucket)).view(-1, self.bucket)
        norms = table.abs().amax(1, keepdim=True)
        scaled = (table * (self._levels / norms.clamp(min=LEAST))).nan_to_num_(0, 0, 0)
        noise = 0.5 if self.contractive else uniform(seed_of(known.seed, known.rank), scaled)
        codes = scaled.add_(noise).floor_().clamp_(-self._levels, self._levels).add_(self._levels)
        out[0].copy_(norms.view(-1))
        pack(codes.view(-1)[: len(values)].to(torch.uint8), self.bits, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Levels times the norm; in a bucket with an element that was not finite, none is."""
        norms = payload[0].repeat_interleave(self.bucket)[: len(out)]
        out.copy_(unpack(payload[1], self.bits, len(out))).sub_(self._levels).mul_(norms).div_(self._levels)


qsgd = compressor(Qsgd, QsgdOptions, bits="bits", bucket="bucket_elements", contractive="contractive")


_STEPS = 127
"""Powers that a byte has beside a sign and 0, from the greatest down."""
_LOWEST, _HIGHEST = -22, 127
"""Exponents of the greatest power: 126 below it there is a number still, and it is one itself."""


class Natural(Codec):
    """A sign and one of 127 powers of two below the greatest element's; what is smaller is drawn to the least or to 0.

    Args:
        contractive: rounded to the nearer power, which is biased, but may be used with error feedback.
    """

    name = "natural"

    def __init__(self, contractive: bool = False) -> None:
        self.contractive = contractive

    def fields(self, n: int, known: Known) -> Fields:
        """The greatest power, and a byte for each element: the sign, and how many powers above 0 it is."""
        return Field(torch.float32, 1), Field(torch.uint8, n)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Drawn to one of the two powers beside it, or to the nearer."""
        most = greatest(values)
        top = torch.frexp(most).exponent.clamp(_LOWEST, _HIGHEST)
        out[0][0] = torch.where(most.isfinite(), torch.exp2(top.double()), torch.nan)
        least = torch.exp2((top - _STEPS + 1).double()).float()
        size = values.abs()
        share = size / least
        fraction, exponent = torch.frexp(size)
        noise = 0.5 if self.contractive else uniform(seed_of(known.seed, known.rank), values)
        power = exponent - 1 + (2 * fraction - 1 > noise).int() - (top - _STEPS)
        code = torch.where(share < 1, (share > noise).int(), power).clamp_(0, _STEPS)
        out[1].copy_(code + (values < 0).int() * (_STEPS + 1))

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """From a table of all bytes; where an element was not finite, none is."""
        steps = torch.arange(_STEPS + 1, device=out.device)
        powers = (payload[0].double() * torch.exp2((steps - _STEPS).double())).float()
        powers[0] *= 0
        torch.index_select(torch.cat([powers, -powers]), 0, payload[1].int(), out=out)


natural = compressor(Natural, ContractiveOptions, contractive="contractive")

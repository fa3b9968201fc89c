"""Eight-bit floating point on the way, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dynbench.compress.codec import CHUNK, LEAST, Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import Fp8Options

if TYPE_CHECKING:
    from dynbench.config.schema import Compress

_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


class Fp8(Codec):
    """Scaled so that the greatest element is the greatest number of the type, and rounded to the nearest.

    Args:
        kind: four bits of exponent and three of fraction, or five and two.
    """

    name = "fp8"
    way = "two_stage"

    def __init__(self, kind: Literal["e4m3", "e5m2"] = "e4m3") -> None:
        self.dtype = _TYPES[kind]

    def fields(self, n: int, known: Known) -> Fields:
        """The greatest element, and all of them."""
        return Field(torch.float32, 1), Field(self.dtype, n)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Rounded."""
        most = greatest(values).clamp(min=LEAST)
        out[0][0] = most
        factor = torch.finfo(self.dtype).max / most
        for start in range(0, len(values), CHUNK):
            out[1][start : start + CHUNK].copy_(values[start : start + CHUNK] * factor)

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Scaled back, from a table of all bytes; where an element was not finite, none is."""
        numbers = torch.arange(2**8, dtype=torch.uint8, device=out.device).view(self.dtype).float()
        numbers *= payload[0] / torch.finfo(self.dtype).max
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            codes = payload[1][start : start + CHUNK].view(torch.uint8)
            torch.index_select(numbers, 0, codes.int(), out=part)


def fp8(settings: Compress | None = None) -> CompressedMean:
    """The compressor `fp8`."""
    return CompressedMean.from_settings(Fp8(options_of(settings, Fp8Options).format), settings)

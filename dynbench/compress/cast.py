"""Half precision on the way: fp16 and bf16, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dynbench.compress.base import seed_of, uniform
from dynbench.compress.codec import Known, Whole
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import Bf16Options

if TYPE_CHECKING:
    from dynbench.config.schema import Compress

_FRACTION = 16
"""Bits of a float32 that a bfloat16 lacks."""


class Fp16(Whole):
    """Rounded to 16 bits; what is above 65504 becomes infinite."""

    name = "fp16"
    way = "two_stage"

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__(dtype)

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        """Without a copy in between."""
        total.add_(payload[0], alpha=factor)


class Bf16(Fp16):
    """Rounded to bfloat16.

    Args:
        rounding: to the nearest, or `stochastic`: up or down so that the mean of many draws is exact.
    """

    name = "bf16"

    def __init__(self, rounding: Literal["nearest", "stochastic"] = "nearest") -> None:
        super().__init__(torch.bfloat16)
        self.rounding = rounding

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Rounded."""
        if self.rounding == "nearest":
            super().encode(values, known, out)
            return
        noise = (uniform(seed_of(known.seed, known.rank), values) * 2**_FRACTION).to(torch.int32)
        rounded = ((values.view(torch.int32) + noise) >> _FRACTION << _FRACTION).view(torch.float32)
        out[0].copy_(torch.where(values.isfinite(), rounded, values))


def fp16(settings: Compress | None = None) -> CompressedMean:
    """The compressor `fp16`."""
    return CompressedMean.from_settings(Fp16(), settings)


def bf16(settings: Compress | None = None) -> CompressedMean:
    """The compressor `bf16`."""
    return CompressedMean.from_settings(Bf16(options_of(settings, Bf16Options).rounding), settings)

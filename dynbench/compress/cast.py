"""Smaller floating point types on the way, summed in float32; and torch's own hook as a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from dynbench.compress.base import Compressor, seed_of, uniform
from dynbench.compress.codec import CHUNK, LEAST, Codec, Field, Fields, Known, Whole, greatest
from dynbench.compress.mean import compressor
from dynbench.plugins.compressors import Bf16Options, Fp8Options
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

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


fp16 = compressor(Fp16)


bf16 = compressor(Bf16, Bf16Options, rounding="rounding")


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


fp8 = compressor(Fp8, Fp8Options, kind="format")


class Fp16Torch(Compressor):
    """`fp16_compress_hook` on each flat gradient; under `ddp` these are DistributedDataParallel's buckets.

    Its all-reduce is its own, and is counted by what it hands in: two bytes for each element.
    """

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """Rounded, divided and summed in half precision, and written back."""
        bucket = cast("dist.GradBucket", (flat,))  # type: ignore[name-defined]  # as compiled autograd hands it one
        sent = torch.empty(flat.shape, dtype=torch.float16, device="meta")
        channel.all_reduce_by(lambda: fp16_compress_hook(channel.group, bucket), sent, flat).wait()

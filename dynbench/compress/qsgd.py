"""QSGD: levels between 0 and a bucket's norm, drawn so that their mean is exact (Alistarh et al., NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from dynbench.compress.base import seed_of, uniform
from dynbench.compress.codec import LEAST, Codec, Field, Fields, Known
from dynbench.compress.mean import CompressedMean
from dynbench.compress.message import pack, packed_bytes, unpack
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import QsgdOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


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


def qsgd(settings: Compress | None = None) -> CompressedMean:
    """The compressor `qsgd`."""
    options = options_of(settings, QsgdOptions)
    return CompressedMean.from_settings(Qsgd(options.bits, options.bucket_elements, options.contractive), settings)

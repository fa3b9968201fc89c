"""1-bit SGD: above or below 0, and the mean of either (Seide et al., Interspeech 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.codec import Codec, Field, Fields, Known
from dynbench.compress.mean import CompressedMean
from dynbench.compress.message import pack, packed_bytes, unpack

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class OneBit(Codec):
    """Of a parameter the mean of what is not negative, the mean of what is, and a bit for each element."""

    name = "onebit"
    leaves_out = True

    def fields(self, n: int, known: Known) -> Fields:
        """Both means, and a bit for each element, 1 for negative."""
        return Field(torch.float32, 2), Field(torch.uint8, packed_bytes(n, 1))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """A mean of nothing is 0."""
        negative = values < 0
        count = negative.sum()
        below = torch.where(negative, values, 0).sum()
        out[0][0] = (values.sum() - below) / (len(values) - count).clamp(min=1)
        out[0][1] = below / count.clamp(min=1)
        pack(negative.view(torch.uint8), 1, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """One mean or the other."""
        above, below = payload[0]
        out.copy_(torch.where(unpack(payload[1], 1, len(out)).bool(), below, above))


def onebit(settings: Compress | None = None) -> CompressedMean:
    """The compressor `onebit`."""
    return CompressedMean.from_settings(OneBit(), settings)

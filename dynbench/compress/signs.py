"""One bit per element.

signsgd: a vote of the ranks (Bernstein et al., ICML 2018), or scaled signs where error feedback makes up for what they
leave out (Karimireddy et al., ICML 2019). 1-bit SGD: above or below 0, and the mean of either (Seide et al.,
Interspeech 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.codec import Codec, Field, Fields, Known
from dynbench.compress.compressing import feedback_of
from dynbench.compress.mean import CompressedMean, compressor
from dynbench.compress.message import pack, packed_bytes, unpack

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class SignSgd(Codec):
    """Signs times the mean absolute value; 0 counts as positive.

    Args:
        vote: of the ranks the sign that has the greater weight of samples, 0 where they are equal, times the mean of
            the ranks' scales; else the mean of what the ranks sent.
    """

    name = "signsgd"
    leaves_out = True

    def __init__(self, vote: bool = True) -> None:
        self.vote = vote

    def fields(self, n: int, known: Known) -> Fields:
        """The scale and the rank's weight, and a bit for each element, 1 for negative."""
        return Field(torch.float32, 2), Field(torch.uint8, packed_bytes(n, 1))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """All in one scale."""
        out[0][0] = torch.linalg.vector_norm(values, 1) / len(values)
        out[0][1] = known.weight
        pack((values < 0).view(torch.uint8), 1, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Plus or minus the scale; where an element was not finite, no number or infinite."""
        scale = payload[0][0]
        out.copy_(unpack(payload[1], 1, len(out))).mul_(-2 * scale).add_(scale)

    def mean_of(self, payloads: Sequence[Sequence[Tensor]], known: Known, out: Tensor) -> None:
        """The vote, or the mean."""
        if not self.vote:
            super().mean_of(payloads, known, out)
            return
        out.zero_()
        for scales, signs in payloads:
            out.sub_(unpack(signs, 1, len(out)) * (2 * scales[1])).add_(scales[1])
        out.sign_().mul_(torch.stack([scales[0] for scales, _ in payloads]).mean())


def signsgd(settings: Compress | None = None) -> CompressedMean:
    """The compressor `signsgd`."""
    return CompressedMean.from_settings(SignSgd(vote=not feedback_of(settings, SignSgd.leaves_out)), settings)


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


onebit = compressor(OneBit)

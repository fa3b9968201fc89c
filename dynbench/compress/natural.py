"""Natural compression: powers of two, drawn so that their mean is exact (Horvath et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.base import seed_of, uniform
from dynbench.compress.codec import Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import ContractiveOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Compress

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


def natural(settings: Compress | None = None) -> CompressedMean:
    """The compressor `natural`."""
    return CompressedMean.from_settings(Natural(options_of(settings, ContractiveOptions).contractive), settings)

"""Elements drawn alike on all ranks, so that they need no indices and can be summed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.base import share_of, some_of
from dynbench.compress.codec import Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import RandomKOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class RandomK(Codec):
    """The share `ratio` of the elements, drawn without replacement from the seed that the ranks share.

    Args:
        ratio: above 0, up to 1; rounded up to whole elements.
        contractive: elements as they are; else divided by their share, so that the mean of many draws is exact.
    """

    name = "randomk"
    way = "sum"

    def __init__(self, ratio: float = 0.01, contractive: bool = False) -> None:
        self.ratio, self.contractive = ratio, contractive

    def kept(self, n: int, known: Known) -> int:
        """The share."""
        return share_of(n, self.ratio)

    def fields(self, n: int, known: Known) -> Fields:
        """The elements."""
        return (Field(torch.float32, self.kept(n, known)),)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """In the order of the indices."""
        torch.index_select(values, 0, self._indices(values, known), out=out[0])
        if not self.contractive:
            out[0].mul_(len(values) / len(out[0]))
        # No number where any element is not finite, drawn or not: an overflow must not go unseen by chance.
        out[0][:1].add_(greatest(values) * 0)

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Zeros elsewhere; of a sum the mean."""
        out.zero_()[self._indices(out, known)] = payload[0] / known.summed

    def _indices(self, values: Tensor, known: Known) -> Tensor:
        return some_of(len(values), self.kept(len(values), known), known.seed, values)


def randomk(settings: Compress | None = None) -> CompressedMean:
    """The compressor `randomk`."""
    options = options_of(settings, RandomKOptions)
    return CompressedMean.from_settings(RandomK(options.ratio, options.contractive), settings)

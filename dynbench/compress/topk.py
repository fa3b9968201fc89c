"""The greatest elements of a parameter (Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.base import Sparse, share_of
from dynbench.compress.codec import Known
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import RatioOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class TopK(Sparse):
    """The share `ratio` of the elements with the greatest absolute values, of each rank its own.

    GRACE rounds the share down: it keeps the same elements, to the bit, but at most one fewer.

    Args:
        ratio: above 0, up to 1; rounded up to whole elements.
    """

    name = "topk"

    def __init__(self, ratio: float = 0.01) -> None:
        self.ratio = ratio

    def kept(self, n: int, known: Known) -> int:
        """The share."""
        return share_of(n, self.ratio)

    def choose(self, values: Tensor, known: Known) -> Tensor:
        """What is no number counts as greatest."""
        return torch.topk(values.abs(), self.kept(len(values), known), sorted=False).indices


def topk(settings: Compress | None = None) -> CompressedMean:
    """The compressor `topk`."""
    return CompressedMean.from_settings(TopK(options_of(settings, RatioOptions).ratio), settings)

"""Few of a parameter's elements: the greatest, those above a threshold, or random ones.

Greatest: Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018. Threshold: Strom, Interspeech 2015, with all of
their value. Random ones are drawn alike on all ranks, so that they need no indices and can be summed on the way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dynbench.compress.base import share_of, some_of
from dynbench.compress.codec import Codec, Field, Fields, Known, greatest
from dynbench.compress.mean import compressor
from dynbench.compress.message import index_field, read_indices, write_indices
from dynbench.plugins.compressors import RandomKOptions, RatioOptions, ThresholdOptions


class Sparse(Codec):
    """Elements that every rank chooses for itself, in float32, with their indices."""

    leaves_out = True

    @abstractmethod
    def choose(self, values: Tensor, known: Known) -> Tensor:
        """Indices of up to `kept` of `values`, shape [n], in any order."""

    def fields(self, n: int, known: Known) -> Fields:
        """Elements, and their indices."""
        most = self.kept(n, known)
        return Field(torch.float32, most), index_field(n, most)

    def index_bytes(self, n: int, known: Known) -> int:
        """Of the indices."""
        return self.fields(n, known)[1].nbytes

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """In the order of the indices; where there are fewer than room is for, zeros follow."""
        indices = self.choose(values, known).sort().values
        out[0][: len(indices)] = values[indices]
        out[0][len(indices) :] = 0
        write_indices(indices, len(values), self.kept(len(values), known), out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Zeros elsewhere."""
        self.add(payload, known, out.zero_(), 1.0)

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        """To those elements alone."""
        indices = read_indices(payload[1], len(total), self.kept(len(total), known))
        total.index_add_(0, indices, payload[0][: len(indices)], alpha=factor)


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


topk = compressor(TopK, RatioOptions, ratio="ratio")


class Threshold(Sparse):
    """Elements whose absolute value is not below the threshold; ranks agree on how many there are at most.

    Args:
        threshold: 0 or above.
    """

    name = "threshold"
    measures = True

    def __init__(self, threshold: float = 1e-3) -> None:
        self.threshold = threshold

    def measure(self, values: Tensor) -> Tensor:
        """How many there are."""
        return self._chosen(values).sum()

    def kept(self, n: int, known: Known) -> int:
        """As many as the rank has that has most."""
        assert known.number is not None, "agreed on"
        return int(known.number)

    def choose(self, values: Tensor, known: Known) -> Tensor:
        """What is no number is above every threshold."""
        return self._chosen(values).nonzero().view(-1)

    def _chosen(self, values: Tensor) -> Tensor:
        return ~(values.abs() < self.threshold)


threshold = compressor(Threshold, ThresholdOptions, threshold="threshold")


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


randomk = compressor(RandomK, RandomKOptions, ratio="ratio", contractive="contractive")

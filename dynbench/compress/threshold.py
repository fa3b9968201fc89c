"""The elements above a fixed size (Strom, Interspeech 2015), with all of their value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from dynbench.compress.base import Sparse
from dynbench.compress.codec import Known
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import options_of
from dynbench.plugins.compressor_options import ThresholdOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


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


def threshold(settings: Compress | None = None) -> CompressedMean:
    """The compressor `threshold`."""
    return CompressedMean.from_settings(Threshold(options_of(settings, ThresholdOptions).threshold), settings)

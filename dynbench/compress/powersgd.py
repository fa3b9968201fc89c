"""PowerSGD: a gradient's matrix as a product of two narrow ones (Vogels, Karimireddy and Jaggi, NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from dynbench.compress.base import normal, seed_of
from dynbench.compress.compressing import Common, OfWhole, average, settle
from dynbench.compress.mean import compressor
from dynbench.plugins.compressors import PowerSgdOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

_DEPENDENT = 1e-5
"""A column of which less than this part is left beside the others counts as none."""


@dataclass
class _Matrix:
    """A parameter's gradient, shape [rows, columns], with what was left out before; `left` and `right` make it."""

    values: Tensor
    mean: Tensor
    right: Tensor
    left: Tensor


class PowerSgd(OfWhole):
    """One step of power iteration from the last step's result, in two all-reduces; other parameters are sent whole.

    What is left out is what this rank's gradient differs by from the mean that was decompressed, so that nothing is
    lost over all ranks.

    Args:
        rank: columns of the narrow matrices; a matrix that they do not make smaller is sent whole.
        common: as in `Compressing`.
    """

    def __init__(
        self,
        rank: int = 2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.rank = rank
        self._right: dict[str, Tensor] = {}

    def _prepared(self, segments: Sequence[Segment], flat: Tensor) -> list[_Matrix]:
        """The matrices, and the first product of each."""
        matrices = [self._matrix(segment, flat) for segment in segments]
        for each in matrices:
            each.left = each.values @ each.right
        return matrices

    def _average(self, channel: Channel, flat: Tensor, items: list[_Matrix]) -> None:
        """Both narrow matrices, one after the other."""
        average(channel, [each.left for each in items])
        with self._times.of("compress_ms"):
            for each in items:
                orthogonalise(each.left)
                torch.mm(each.values.T, each.left, out=each.right)
        average(channel, [each.right for each in items])
        with self._times.of("decompress_ms"):
            for each in items:
                found = each.left @ each.right.T
                if self.error_feedback:
                    settle(each.values.sub_(found))
                each.mean.copy_(found)

    def _fits(self, segment: Segment) -> bool:
        """Whether the narrow matrices are smaller than the parameter."""
        rows = segment.shape[0] if len(segment.shape) > 1 else 1
        return rows > 1 and self._columns(segment) * (rows + segment.numel // rows) < segment.numel

    def _columns(self, segment: Segment) -> int:
        return min(self.rank, segment.shape[0], segment.numel // segment.shape[0])

    def _matrix(self, segment: Segment, flat: Tensor) -> _Matrix:
        rows = segment.shape[0]
        values, columns = self._corrected(segment.whole, flat).view(rows, -1), self._columns(segment)
        seed = seed_of(self.seed, segment.name, self._step(segment.name))
        right = normal(seed, (values.shape[1], columns), values)
        if (last := self._right.get(segment.name)) is not None:
            last = last.to(values.device)
            norms = torch.linalg.vector_norm(last, dim=0)
            right = torch.where((norms > 0) & norms.isfinite(), last, right)
        self._right[segment.name] = right
        self._counted(segment.numel, columns * (rows + values.shape[1]))
        return _Matrix(values, segment.of(flat).view(rows, -1), right, right)


def orthogonalise(matrix: Tensor) -> None:
    """Make the columns of a matrix, shape [n, r], orthonormal in place; one that depends on those before it becomes 0.

    By Gram and Schmidt, twice for each column; the same to the bit for the same matrix.
    """
    for place in range(matrix.shape[1]):
        column, before = matrix[:, place], matrix[:, :place]
        size = torch.linalg.vector_norm(column)
        for _ in range(2):
            column.sub_(before @ (before.T @ column))
        left = torch.linalg.vector_norm(column)
        column.mul_(torch.where(left > _DEPENDENT * size, 1 / left, 0))


powersgd = compressor(PowerSgd, PowerSgdOptions, rank="rank")

"""Payloads of some elements and where they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dynbench.compress.codec import Codec, Field, Fields, Known
from dynbench.compress.indices import index_field, read_indices, write_indices


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


def share_of(n: int, ratio: float) -> int:
    """So many of n, rounded up, at least one where there is one."""
    return min(n, max(1, -int(-ratio * n * (1 - 1e-9) // 1)))

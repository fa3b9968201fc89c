"""GradiVeQ: slices of a gradient as their parts along the directions in which they lie (Yu et al., NeurIPS 2018).

Slices of one parameter are alike: most of them is within a space of few dimensions, the first principal directions of
all. Every rank sends the parts along these, which are added up on the way, as what is linear can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from dynbench.compress.compressing import Common, OfWhole, average, settle
from dynbench.compress.mean import compressor
from dynbench.plugins.compressors import GradiVeqOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment


@dataclass
class _Sliced:
    """A parameter's gradient with what was left out before, shape [n], and its slices, shape [m, elements]."""

    part: Part
    values: Tensor
    slices: Tensor
    sent: Tensor


class GradiVeq(OfWhole):
    """Slices projected on a basis that all ranks share, found anew every few steps from the slices of all of them.

    What is left out is what a rank's own slices have outside of the space.

    Args:
        elements: of a slice; the last one of a parameter is filled up with zeros.
        components: directions that are sent, of `elements`; parameters that they do not make smaller are sent whole.
        refresh_every: averages of a parameter between two searches for its basis.
        common: as in `Compressing`.
    """

    def __init__(
        self,
        elements: int = 64,
        components: int = 16,
        refresh_every: int = 20,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.elements, self.components, self.refresh_every = elements, components, refresh_every
        self._basis: dict[str, Tensor] = {}
        """Orthonormal columns, shape [elements, components], by parameter."""

    def _prepared(self, segments: Sequence[Segment], flat: Tensor) -> list[_Sliced]:
        """The slices."""
        return [self._sliced(segment.whole, flat) for segment in segments]

    def _average(self, channel: Channel, flat: Tensor, items: list[_Sliced]) -> None:
        """The bases that are due, and the parts along them."""
        self._refresh(channel, [each for each in items if self._is_due(each.part.name)])
        with self._times.of("compress_ms"):
            for each in items:
                each.sent = each.slices @ self._basis_of(each)
                if self.error_feedback:
                    settle(each.values.sub_(self._restored(each)))
        average(channel, [each.sent for each in items])
        with self._times.of("decompress_ms"):
            for each in items:
                each.part.of(flat).copy_(self._restored(each))

    def _count(self, n: int) -> int:
        """Slices of a parameter."""
        return -(-n // self.elements)

    def _fits(self, segment: Segment) -> bool:
        return self.components < self.elements and self._count(segment.numel) * self.components < segment.numel

    def _sliced(self, part: Part, flat: Tensor) -> _Sliced:
        values = self._corrected(part, flat)
        lacking = self._count(part.numel) * self.elements - part.numel
        slices = (torch.nn.functional.pad(values, (0, lacking)) if lacking else values).view(-1, self.elements)
        self._counted(part.numel, len(slices) * self.components)
        return _Sliced(part, values, slices, slices)

    def _is_due(self, name: str) -> bool:
        return name not in self._basis or (self._step(name) - self.start_step) % self.refresh_every == 0

    def _refresh(self, channel: Channel, due: Sequence[_Sliced]) -> None:
        """The principal directions of all ranks' slices, as the first rank finds them.

        Where these are not finite there are none: the first directions of a slice do for this time.
        """
        if not due:
            return
        with self._times.of("compress_ms"):
            moments = [each.slices.T @ each.slices for each in due]
        with self._beside():
            average(channel, moments)
        with self._times.of("compress_ms"):
            found = [self._principal(moment, channel.rank == 0) for moment in moments]
        bases = torch.stack(found)
        with self._beside():
            channel.all_reduce(bases).wait()  # the others' are zero: libraries may differ in signs
        for each, moment, basis in zip(due, moments, bases, strict=True):
            self._basis.pop(each.part.name, None)
            if moment.isfinite().all():
                self._basis[each.part.name] = basis

    def _principal(self, moment: Tensor, is_first: bool) -> Tensor:
        if not is_first or not moment.isfinite().all():
            return moment.new_zeros(self.elements, self.components)
        directions: Tensor = torch.linalg.eigh(moment).eigenvectors
        return directions[:, -self.components :].contiguous()

    def _basis_of(self, each: _Sliced) -> Tensor:
        basis = self._basis.get(each.part.name)
        if basis is None:
            return torch.eye(self.elements, self.components, device=each.values.device)
        return basis.to(each.values.device)

    def _restored(self, each: _Sliced) -> Tensor:
        return (each.sent @ self._basis_of(each).T).view(-1)[: each.part.numel]


gradiveq = compressor(
    GradiVeq, GradiVeqOptions, elements="slice_elements", components="components", refresh_every="refresh_every"
)

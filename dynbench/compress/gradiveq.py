"""GradiVeQ: slices of a gradient as their parts along the directions in which they lie (Yu et al., NeurIPS 2018).

Slices of one parameter are alike: most of them is within a space of few dimensions, the first principal directions of
all. Every rank sends the parts along these, which are added up on the way, as what is linear can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from dynbench.compress.compressing import Common, Compressing, asked_feedback, average
from dynbench.compress.feedback import settle
from dynbench.plugins import options_of
from dynbench.plugins.compressors import GradiVeqOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment, cut

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


@dataclass
class _Sliced:
    """A parameter's gradient with what was left out before, shape [n], and its slices, shape [m, elements]."""

    part: Part
    values: Tensor
    slices: Tensor
    sent: Tensor


class GradiVeq(Compressing):
    """Slices projected on a basis that all ranks share, found anew every few steps from the slices of all of them.

    What is left out is what a rank's own slices have outside of the space. A shard is cut from the whole mean.

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

    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """What is sent whole, the bases that are due, and the parts along them."""
        self._tally.clock = channel.ledger.clock
        names = self._compressed(segments)
        with self._tally.timed("compress_ms"):
            parts = [part for part in cut(segments, len(flat), 1)[0] if part.name in names and self._fits(part.numel)]
            sliced = [self._sliced(part, flat) for part in parts]
        taken = {part.name for part in parts}
        whole = [segment.of(flat).view(-1) for segment in segments if segment.name not in taken and segment.numel]
        if whole:
            with self._tally.beside(bool(sliced)):
                average(channel, whole)
        self._refresh(channel, [each for each in sliced if self._is_due(each.part.name)])
        if sliced:
            with self._tally.timed("compress_ms"):
                for each in sliced:
                    each.sent = each.slices @ self._basis_of(each)
                    if self.error_feedback:
                        self._keep(each)
            average(channel, [each.sent for each in sliced])
            with self._tally.timed("decompress_ms"):
                for each in sliced:
                    each.part.of(flat).copy_(self._restored(each))
        self._done(segments)

    def _count(self, n: int) -> int:
        """Slices of a parameter."""
        return -(-n // self.elements)

    def _fits(self, n: int) -> bool:
        return self.components < self.elements and self._count(n) * self.components < n

    def _sliced(self, part: Part, flat: Tensor) -> _Sliced:
        given = part.of(flat)
        values = self._residuals.corrected(part, given) if self.error_feedback else given.float()
        lacking = self._count(part.numel) * self.elements - part.numel
        slices = (torch.nn.functional.pad(values, (0, lacking)) if lacking else values).view(-1, self.elements)
        self._tally.count(part.numel, len(slices) * self.components)
        return _Sliced(part, values, slices, slices)

    def _is_due(self, name: str) -> bool:
        return name not in self._basis or (self._step(name) - self.start_step) % self.refresh_every == 0

    def _refresh(self, channel: Channel, due: Sequence[_Sliced]) -> None:
        """The principal directions of all ranks' slices, as the first rank finds them.

        Where these are not finite there are none: the first directions of a slice do for this time.
        """
        if not due:
            return
        with self._tally.timed("compress_ms"):
            moments = [each.slices.T @ each.slices for each in due]
        with self._tally.beside():
            average(channel, moments)
        with self._tally.timed("compress_ms"):
            found = [self._principal(moment, channel.rank == 0) for moment in moments]
        together = torch.stack(found)
        with self._tally.beside():
            channel.all_reduce(together).wait()  # the others' are zero: libraries may differ in signs
        for each, moment, basis in zip(due, moments, together, strict=True):
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

    def _keep(self, each: _Sliced) -> None:
        settle(each.values.sub_(self._restored(each)))


def gradiveq(settings: Compress | None = None) -> GradiVeq:
    """The compressor `gradiveq`."""
    options = options_of(settings, GradiVeqOptions)
    made = GradiVeq(
        options.slice_elements,
        options.components,
        options.refresh_every,
        error_feedback=asked_feedback(settings, True),
    )
    made.configured(settings)
    return made

"""One compressor after the other: which elements are sent, and how these are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.compress.codec import Codec, Field, Fields, Known
from dynbench.compress.compressing import feedback_of
from dynbench.compress.mean import CompressedMean
from dynbench.plugins import COMPRESSORS

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


class Pipeline(Codec):
    """The elements that the first chooses, as the second writes them; indices stay as the first writes them.

    What ranks would agree on for the second, as a scale, every rank sends for itself.

    Args:
        first: chooses elements, which are the first tensor of its payload.
        second: writes them.
    """

    def __init__(self, first: Codec, second: Codec) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"
        self.contractive = first.contractive and second.contractive
        self.measures = first.measures
        self.leaves_out = first.leaves_out

    def measure(self, values: Tensor) -> Tensor:
        """The first's."""
        return self.first.measure(values)

    def kept(self, n: int, known: Known) -> int:
        """The first's."""
        return self.first.kept(n, known)

    def index_bytes(self, n: int, known: Known) -> int:
        """The first's."""
        return self.first.index_bytes(n, known)

    def fields(self, n: int, known: Known) -> Fields:
        """The second's number where it has one, its payload, and the first's indices."""
        chosen, *indices = self.first.fields(n, known)
        number = (Field(torch.float32, 1),) if self.second.measures else ()
        return *number, *self.second.fields(chosen.length, _alone(known)), *indices

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """One after the other."""
        chosen, indices = self._split(len(values), known, out)
        elements = values.new_empty(chosen)
        self.first.encode(values, known, [elements, *indices])
        if not chosen:
            return
        if self.second.measures:
            out[0][0] = self.second.measure(elements)
        self.second.encode(elements, *self._second(known, out, len(indices)))

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Back again."""
        self.first.decode(self._first_payload(payload, known, len(out)), known, out)

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        """To the first's elements."""
        self.first.add(self._first_payload(payload, known, len(total)), known, total, factor)

    def _split(self, n: int, known: Known, payload: Sequence[Tensor]) -> tuple[int, Sequence[Tensor]]:
        """How many elements are chosen, and what says which."""
        chosen, *indices = self.first.fields(n, known)
        return chosen.length, payload[len(payload) - len(indices) :]

    def _second(self, known: Known, payload: Sequence[Tensor], indices: int) -> tuple[Known, Sequence[Tensor]]:
        """What the second knows of its payload, its number among it, and that payload."""
        number = payload[0][0].double() if self.second.measures else None
        return replace(_alone(known), number=number), payload[self.second.measures : len(payload) - indices]

    def _first_payload(self, payload: Sequence[Tensor], known: Known, n: int) -> list[Tensor]:
        chosen, indices = self._split(n, known, payload)
        elements = torch.empty(chosen, device=payload[0].device)
        if chosen:
            alone, written = self._second(known, payload, len(indices))
            self.second.decode(written, alone, elements)
        return [elements, *indices]


def _alone(known: Known) -> Known:
    """What the second knows of a payload that is not added up."""
    return replace(known, ranks=1, summed=1, number=None)


def pipeline(settings: Compress | None = None) -> CompressedMean:
    """The compressor of a name like `topk+int8`; with error feedback both in their contractive forms."""
    if settings is None:
        from dynbench.config.schema import Compress

        settings = Compress(name="topk+int8")
    entry = COMPRESSORS.find(settings.name)
    feedback = feedback_of(settings, entry.feedback)
    apart = settings.model_copy(update={"contractive": feedback, "error_feedback": False})
    first, second = (COMPRESSORS.find(name).load()(apart).codec for name in settings.name.split("+"))
    return CompressedMean.from_settings(Pipeline(first, second), settings)

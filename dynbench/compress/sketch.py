"""Sketched-SGD: heavy elements found in a sum of count sketches, then sent exactly (Ivkin et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from dynbench.compress.base import seed_of, share_of
from dynbench.compress.codec import CHUNK
from dynbench.compress.compressing import Common, Compressing, asked_feedback, average
from dynbench.compress.feedback import settle
from dynbench.plugins import options_of
from dynbench.plugins.compressors import SketchOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment, cut

if TYPE_CHECKING:
    from dynbench.config.schema import Compress

_HALF = 32
"""Bits of a hash, the upper ones of a product modulo 2**64."""


class CountSketch:
    """Sums of signed elements in rows of buckets (Charikar, Chen and Farach-Colton, ICALP 2002); linear.

    Args:
        n: elements that are sketched.
        rows: hash functions.
        columns: buckets of each.
        seed: of the hash functions.
        device: where the elements are.
    """

    def __init__(self, n: int, rows: int, columns: int, seed: int, device: torch.device) -> None:
        drawn = torch.randint(-(2**63), 2**63 - 1, (rows, 2, 2), generator=torch.Generator().manual_seed(seed))
        self._hashes: list[list[list[int]]] = drawn.tolist()
        self._n, self._columns, self._device = n, columns, device

    def write(self, values: Tensor) -> Tensor:
        """The sketch of `values`, shape [n]: shape [rows, columns]."""
        sketch = torch.zeros(len(self._hashes), self._columns, device=values.device)
        for begin, end in self._chunks():
            for row, signed, buckets in self._rows(sketch, begin, end):
                row.index_add_(0, buckets, signed.mul_(values[begin:end]))
        return sketch

    def read(self, sketch: Tensor) -> Tensor:
        """What the elements are near to, shape [n]: the median over rows."""
        found = torch.empty(self._n, device=sketch.device)
        for begin, end in self._chunks():
            near = [signs.mul_(row[buckets]) for row, signs, buckets in self._rows(sketch, begin, end)]
            found[begin:end] = _median(near)
        return found

    def _chunks(self) -> Iterator[tuple[int, int]]:
        return ((begin, min(begin + CHUNK, self._n)) for begin in range(0, self._n, CHUNK))

    def _rows(self, sketch: Tensor, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of some elements, every row of a sketch with their signs, 1 or -1, and their buckets in it."""
        places = torch.arange(begin, end, device=self._device)
        for row, (bucket, sign) in zip(sketch, self._hashes, strict=True):
            signs = (_hashed(places, sign) & 1).float().mul_(-2).add_(1)
            yield row, signs, _hashed(places, bucket).mul_(self._columns).bitwise_right_shift_(_HALF)


def _median(rows: list[Tensor]) -> Tensor:
    """The lower median of each element, by exchanges: torch's takes fifteen times as long for a handful of rows."""
    lowest = list(rows)
    for _ in range((len(rows) + 1) // 2):
        for place in range(len(lowest) - 1, 0, -1):
            a, b = lowest[place - 1], lowest[place]
            lowest[place - 1], lowest[place] = torch.minimum(a, b), torch.maximum(a, b)
        least = lowest.pop(0)
    return least


def _hashed(places: Tensor, drawn: Sequence[int]) -> Tensor:
    """Numbers from 0 up to 2**32, any two of them independent (Dietzfelbinger, STACS 1996)."""
    return places.mul(drawn[0]).add_(drawn[1]).bitwise_right_shift_(_HALF).bitwise_and_(2**_HALF - 1)


class Sketch(Compressing):
    """Ranks add up sketches, take the elements that are greatest in the sum, and average these exactly.

    Residuals lack what was sent. A shard is cut from the whole mean.

    Args:
        ratio: of a parameter's elements, the share that is sent exactly.
        rows: of a sketch.
        columns: of a sketch, as a share of the parameter's elements.
        common: as in `Compressing`.
    """

    def __init__(
        self,
        ratio: float = 0.01,
        rows: int = 5,
        columns: float = 0.01,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.ratio, self.rows, self.sketch_columns = ratio, rows, columns

    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """A sketch of each parameter, then the elements found."""
        self._tally.clock = channel.ledger.clock
        names = self._compressed(segments)
        with self._tally.timed("compress_ms"):
            parts = [part for part in cut(segments, len(flat), 1)[0] if part.name in names]
            values = [self._given(part, flat) for part in parts]
            hashes = [self._hashes(part, flat) for part in parts]
            sketches = [each.write(given) for each, given in zip(hashes, values, strict=True)]
        whole = [segment.of(flat).view(-1) for segment in segments if segment.name not in names and segment.numel]
        if whole:
            with self._tally.beside(bool(parts)):
                average(channel, whole)
        if parts:
            average(channel, sketches)
            with self._tally.timed("compress_ms"):
                found = [each.read(sketch).abs() for each, sketch in zip(hashes, sketches, strict=True)]
                places = [torch.topk(near, share_of(len(near), self.ratio)).indices for near in found]
                together = zip(values, places, sketches, strict=True)
                sent = [given[place] + 0 * sketch.sum() for given, place, sketch in together]  # no number if one is not
                if self.error_feedback:
                    for given, place in zip(values, places, strict=True):
                        given[place] = 0
                        settle(given)
            average(channel, sent)
            with self._tally.timed("decompress_ms"):
                for part, place, mean in zip(parts, places, sent, strict=True):
                    part.of(flat).zero_()[place] = mean.to(flat.dtype)
                    self._tally.count(part.numel, len(place))
        self._done(segments)

    def _given(self, part: Part, flat: Tensor) -> Tensor:
        given = part.of(flat)
        return self._residuals.corrected(part, given) if self.error_feedback else given.float()

    def _hashes(self, part: Part, flat: Tensor) -> CountSketch:
        columns = max(1, math.ceil(self.sketch_columns * part.numel))
        return CountSketch(part.numel, self.rows, columns, seed_of(self.seed, part.name), flat.device)


def sketch(settings: Compress | None = None) -> Sketch:
    """The compressor `sketch`."""
    options = options_of(settings, SketchOptions)
    made = Sketch(
        options.ratio, options.sketch_rows, options.sketch_columns, error_feedback=asked_feedback(settings, True)
    )
    made.configured(settings)
    return made

"""Sketched-SGD: heavy elements found in a sum of count sketches, then sent exactly (Ivkin et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from dynbench.compress.base import seed_of, share_of
from dynbench.compress.codec import CHUNK
from dynbench.compress.compressing import Common, OfWhole, average, settle
from dynbench.compress.mean import compressor
from dynbench.plugins.compressors import SketchOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment

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


@dataclass
class _Sketched:
    """A parameter's gradient with what was left out before, shape [n], and its sketch, which becomes the mean."""

    part: Part
    values: Tensor
    hashes: CountSketch
    sketch: Tensor


class Sketch(OfWhole):
    """Ranks add up sketches, take the elements that are greatest in the sum, and average these exactly.

    Residuals lack what was sent.

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

    def _prepared(self, segments: Sequence[Segment], flat: Tensor) -> list[_Sketched]:
        """A sketch of each parameter."""
        return [self._sketched(segment.whole, flat) for segment in segments]

    def _sketched(self, part: Part, flat: Tensor) -> _Sketched:
        columns = max(1, math.ceil(self.sketch_columns * part.numel))
        hashes = CountSketch(part.numel, self.rows, columns, seed_of(self.seed, part.name), flat.device)
        values = self._corrected(part, flat)
        return _Sketched(part, values, hashes, hashes.write(values))

    def _average(self, channel: Channel, flat: Tensor, items: list[_Sketched]) -> None:
        """The sketches, then the elements found."""
        average(channel, [each.sketch for each in items])
        sent, places = [], []
        with self._times.of("compress_ms"):
            for each in items:
                near = each.hashes.read(each.sketch).abs()
                places.append(torch.topk(near, share_of(len(near), self.ratio)).indices)
                sent.append(each.values[places[-1]] + 0 * each.sketch.sum())  # no number if one is not
                if self.error_feedback:
                    each.values[places[-1]] = 0
                    settle(each.values)
        average(channel, sent)
        with self._times.of("decompress_ms"):
            for each, place, mean in zip(items, places, sent, strict=True):
                each.part.of(flat).zero_()[place] = mean.to(flat.dtype)
                self._counted(each.part.numel, len(place))


sketch = compressor(Sketch, SketchOptions, ratio="ratio", rows="sketch_rows", columns="sketch_columns")

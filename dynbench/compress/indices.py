"""Which of n elements are sent, in as few bytes as a fixed size allows: all ranks know it before anything is sent.

Gaps between indices are written in one byte or two; a larger gap is the largest number of all, as often as it goes into
it, and the rest. So m of n indices never need more than m + n // 255 bytes, or 2 (m + n // 65535). Where more than
about an eighth is sent, a bit for each of the n is less.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dynbench.compress.bits import pack, packed_bytes, unpack
from dynbench.compress.codec import Field

Coding = Literal["delta8", "delta16", "bitmap"]
_LARGEST = {"delta8": 2**8 - 1, "delta16": 2**16 - 1}
_BIAS = 2**15
"""torch computes with signed numbers of two bytes only."""


def coding(n: int, most: int) -> Coding:
    """The smallest that holds up to `most` of n indices."""
    forms: tuple[Coding, ...] = ("delta8", "delta16", "bitmap")
    return min(forms, key=lambda form: _field(form, n, most).nbytes)


def index_field(n: int, most: int) -> Field:
    """Where up to `most` of n indices go."""
    return _field(coding(n, most), n, most)


def write_indices(indices: Tensor, n: int, most: int, out: Tensor) -> None:
    """Write indices, shape [m], rising, m up to `most`, into a tensor of `index_field`."""
    form = coding(n, most)
    if form == "bitmap":
        flags = torch.zeros(n, dtype=torch.uint8, device=indices.device)
        flags[indices] = 1
        pack(flags, 1, out)
        return
    largest = _LARGEST[form]
    gaps = torch.diff(indices, prepend=indices.new_zeros(1))
    codes = torch.full((len(out),), largest, dtype=torch.int64, device=indices.device)
    codes[torch.cumsum(gaps // largest + 1, 0) - 1] = gaps % largest
    out.copy_(codes if form == "delta8" else codes - _BIAS)


def read_indices(written: Tensor, n: int, most: int) -> Tensor:
    """The indices, shape [m]."""
    form = coding(n, most)
    if form == "bitmap":
        return unpack(written, 1, n).nonzero().view(-1)
    codes = written.long() if form == "delta8" else written.long() + _BIAS
    return torch.cumsum(codes, 0)[codes != _LARGEST[form]]


def _field(form: Coding, n: int, most: int) -> Field:
    if form == "bitmap":
        return Field(torch.uint8, packed_bytes(n, 1))
    length = most + n // _LARGEST[form] if most else 0
    return Field(torch.uint8 if form == "delta8" else torch.int16, length)

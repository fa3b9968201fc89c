"""What a compressor sends: bits, indices, and the message that holds them.

Which of n elements are sent takes a fixed size, which all ranks know before anything is sent. Gaps between indices are
written in one byte or two; a larger gap is the largest number of all, as often as it goes into it, and the rest. So m
of n indices never need more than m + n // 255 bytes, or 2 (m + n // 65535). Where more than about an eighth is sent, a
bit for each of the n is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.compress.codec import Field, Fields

_LARGEST = {"delta8": 2**8 - 1, "delta16": 2**16 - 1}
_BIAS = 2**15
"""torch computes with signed numbers of two bytes only."""
_ALIGNMENT = 8


def packed_bytes(n: int, bits: int) -> int:
    """Bytes of n numbers of 1, 2, 4 or 8 bits."""
    return -(-n * bits // 8)


def pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Numbers below 2**bits one after the other, the lowest bits first.

    Args:
        codes: of uint8, shape [n].
        bits: 1, 2, 4 or 8.
        out: of uint8, shape [packed_bytes(n, bits)].
    """
    if bits == 8:
        out.copy_(codes)
    elif bits == 1 and codes.device.type == "cpu":
        out.copy_(torch.from_numpy(np.packbits(codes.numpy(), bitorder="little")))
    else:
        per = 8 // bits
        table = nn.functional.pad(codes, (0, -len(codes) % per)).view(-1, per)
        out.copy_(table[:, 0])
        for place in range(1, per):
            out.bitwise_or_(table[:, place] << bits * place)


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The n numbers of `pack`, of uint8."""
    if bits == 8:
        return packed
    if bits == 1 and packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=n, bitorder="little"))
    return torch.stack([(packed >> place) & (2**bits - 1) for place in range(0, 8, bits)], 1).view(-1)[:n]


Coding = Literal["delta8", "delta16", "bitmap"]


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


class Message:
    """Where payloads lie, one after the other, in messages that are all as long as the longest.

    Args:
        pieces: of every message the fields of its payloads.
    """

    def __init__(self, pieces: Sequence[Sequence[Fields]]) -> None:
        self._places: list[list[list[tuple[torch.dtype, int, int]]]] = []
        longest = 1  # none is empty, which back ends refuse
        for piece in pieces:
            end, places = 0, []
            for fields in piece:
                place = []
                for field in fields:
                    end += -end % field.dtype.itemsize
                    place.append((field.dtype, end, end + field.nbytes))
                    end += field.nbytes
                places.append(place)
            self._places.append(places)
            longest = max(longest, end)
        self.nbytes = longest + -longest % _ALIGNMENT
        """Of one message."""

    def payloads(self, message: Tensor, piece: int) -> list[list[Tensor]]:
        """The payloads of a piece, as views into a message of it, of uint8, shape [nbytes]."""
        return [[message[start:end].view(dtype) for dtype, start, end in place] for place in self._places[piece]]

    def row(self, messages: Tensor, number: int) -> Tensor:
        """One of several messages that follow each other."""
        return messages[number * self.nbytes : (number + 1) * self.nbytes]


class Scratch:
    """Memory that is used again by the next message of its size.

    The first touch of new memory costs as much as its use.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int, torch.device], Tensor] = {}

    def __call__(self, name: str, size: int, like: Tensor) -> Tensor:
        """So many bytes for a purpose, where a tensor is; with the values of their last use."""
        key = (name, size, like.device)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(size, dtype=torch.uint8, device=like.device)
        return self._buffers[key]

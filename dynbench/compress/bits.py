"""Small numbers packed to the bit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


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

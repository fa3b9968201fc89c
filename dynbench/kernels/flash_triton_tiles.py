"""The tiles that the Triton kernels of FlashAttention-2 are tuned over; this needs no Triton.

They fit into the shared memory of sm_80 and sm_90, and spill at most a quarter of a thread's registers; one of every
list spills none. `tests/unit/kernels/test_flash_compiled.py` compiles them, for which no GPU is needed. float32,
without tensor cores, holds more of its operands in registers, and takes smaller tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """Queries and keys, the warps that share it, and the stages in which its loop loads ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


def _in_stages(*shapes: tuple[int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile(*shape, stages) for shape in shapes for stages in (2, 3))


_SMALL = _in_stages((64, 64, 4), (64, 32, 4), (32, 32, 4))
_HALF: dict[tuple[str, bool], tuple[Tile, ...]] = {
    ("forward", False): (*_in_stages((128, 128, 8), (128, 64, 4), (64, 128, 4)), *_SMALL),
    ("forward", True): (*_in_stages((128, 128, 8), (128, 64, 8), (64, 128, 4)), *_SMALL),
    ("queries", False): (*_in_stages((128, 128, 8), (128, 64, 4), (64, 128, 4)), *_SMALL),
    ("queries", True): (Tile(128, 128, 8, 2), *_in_stages((128, 64, 8)), Tile(64, 128, 8, 2), *_SMALL),
    ("keys", False): (*_in_stages((128, 128, 8), (128, 64, 4), (64, 128, 8)), *_SMALL),
    ("keys", True): (Tile(128, 64, 8, 2), *_SMALL),
}
"""By kernel, and whether there are more than 64 channels; from the largest on."""
_AHEAD = (
    *(Tile(64, 32, 8, 2), Tile(32, 64, 8, 2), Tile(64, 16, 8, 2)),
    *(Tile(32, 32, 8, 2), Tile(32, 32, 4, 2), Tile(32, 16, 4, 2)),
)
_ONE_STAGE = (Tile(32, 32, 8, 1), Tile(32, 16, 8, 1), Tile(16, 16, 4, 1))
_FLOAT32: dict[tuple[str, bool], tuple[Tile, ...]] = {
    ("forward", False): _AHEAD,
    ("forward", True): (Tile(32, 64, 8, 1), *_ONE_STAGE),
    ("queries", False): _AHEAD,
    ("queries", True): _AHEAD,
    ("keys", False): (Tile(64, 16, 8, 2), Tile(16, 64, 8, 2), Tile(32, 32, 8, 2), Tile(32, 16, 4, 2)),
    ("keys", True): (Tile(64, 16, 8, 1), *_ONE_STAGE),
}
"""Likewise."""
ALL_TILES = tuple(dict.fromkeys(tile for lists in (_HALF, _FLOAT32) for tiles in lists.values() for tile in tiles))


def tiles_of(kernel: str, channels: int, dtype: torch.dtype) -> tuple[Tile, ...]:
    """The tiles that a kernel is tuned over.

    Args:
        kernel: `forward`, `queries` or `keys`.
        channels: of a head.
        dtype: of the states.
    """
    lists = _FLOAT32 if dtype is torch.float32 else _HALF
    return lists[kernel, channels > 64]

"""The interface of a compressor, and what is drawn at random.

Files of plug-ins import this module while the configuration is still being assembled from what they register.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynbench.wire.base import Compressor as Compressor

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


def uncompressed(settings: Compress) -> None:
    """The compressor `none`: gradients travel as they are, without a queue."""


_STEP, *_FACTORS = (each - 2**64 for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Of SplitMix64, as int64."""


def seed_of(*parts: object) -> int:
    """A number that names made of these parts share with no others."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def uniform(seed: int, like: Tensor) -> Tensor:
    """Numbers from 0 up to 1, of a tensor's shape, in float32: this rank's own, as GPUs of other kinds draw others."""
    source = torch.Generator(like.device).manual_seed(seed)
    return torch.rand(like.shape, generator=source, device=like.device)


def numbers(seed: int, places: Tensor) -> Tensor:
    """Whole numbers from 0 up to 2**63 by place, int64, the same on every device; a place has one under each seed.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from a counter: torch's generators follow a GPU's number of
    multiprocessors, and unlike GPUs would draw unlike elements of what they add up.
    """
    mixed = (places + 1) * _STEP + seed
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        mixed = _folded(mixed, shift) * factor
    return _folded(mixed, 31) & (2**63 - 1)


def _folded(mixed: Tensor, shift: int) -> Tensor:
    """Exclusive or with its own upper bits, whose sign does not come along."""
    return mixed ^ (mixed >> shift & (1 << 64 - shift) - 1)


def some_of(n: int, k: int, seed: int, like: Tensor) -> Tensor:
    """Of n indices k different ones, rising, where a tensor is; the same on every device.

    Every set of them is as likely as any other.
    """
    found, drawn = torch.arange(n if 4 * k > n else 0, device=like.device), 0
    while len(found) < k:
        more = k - len(found) + k // 4 + 8
        places = torch.arange(drawn, drawn + more, device=like.device)
        found, drawn = torch.unique(torch.cat([found, numbers(seed, places) % n])), drawn + more
    order = numbers(seed_of(seed), found).argsort(stable=True)
    return found[order[:k]].sort().values


def normal(seed: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers of a shape, where a tensor is, in float32; the same on every device but for rounding."""
    drawn = numbers(seed, torch.arange(math.prod(shape), device=like.device)) >> 40
    return drawn.float().add_(0.5).div_(2**22).sub_(1).erfinv_().mul_(math.sqrt(2)).view(*shape)


def share_of(n: int, ratio: float) -> int:
    """So many of n, rounded up, at least one where there is one."""
    return min(n, max(1, -int(-ratio * n * (1 - 1e-9) // 1)))

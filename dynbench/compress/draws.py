"""Random numbers of a tensor and a step, which leave torch's own generators alone."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def seed_of(*parts: object) -> int:
    """A number that names made of these parts share with no others."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, like: Tensor) -> torch.Generator:
    """A new one where a tensor is."""
    return torch.Generator(like.device).manual_seed(seed)


def uniform(seed: int, like: Tensor) -> Tensor:
    """Numbers from 0 up to 1, of a tensor's shape, in float32."""
    return torch.rand(like.shape, generator=generator(seed, like), device=like.device)


def some_of(n: int, k: int, seed: int, like: Tensor) -> Tensor:
    """Of n indices k different ones, rising; every set of them is as likely as any other."""
    source = generator(seed, like)
    if 4 * k > n:
        return torch.randperm(n, generator=source, device=like.device)[:k].sort().values
    found = torch.empty(0, dtype=torch.int64, device=like.device)
    while len(found) < k:
        drawn = torch.randint(n, (k - len(found) + k // 4 + 8,), generator=source, device=like.device)
        found = torch.unique(torch.cat([found, drawn]))
    return found[torch.randperm(len(found), generator=source, device=like.device)[:k]].sort().values

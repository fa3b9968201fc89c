"""One layer on a packed row, forward and backward: its attention by one of several ways, or its linear parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.bench.base import Measured
from dynbench.clock import clock_for
from dynbench.kernels import Boundaries
from dynbench.kernels.packed_attention import attend
from dynbench.kernels.packed_rows import Arrangement
from dynbench.plugins.benchmarks import PackedAttentionOptions

Layer = Callable[[], Tensor]


def measure_way(way: str, lengths: Sequence[int], options: PackedAttentionOptions, device: torch.device) -> Measured:
    """Time the iterations, and say how far the result is from attention of every sample alone.

    Args:
        way: one of `packed_attention.WAYS`.
        lengths: of the row's samples.
        options: width, heads and how often.
        device: where to run.
    """
    boundaries = Boundaries(tuple(lengths), device)
    drawn = torch.Generator().manual_seed(0)
    heads, channels = options.heads, options.channels
    query, key, value = (
        torch.randn(boundaries.tokens, heads, channels, generator=drawn).to(device).requires_grad_() for _ in range(3)
    )
    layer = _linear(query, options.width) if way == "linear" else _attention(way, query, key, value, boundaries)
    clock, times = clock_for(device), []
    for _ in range(options.warmup + options.iterations):
        clock.synchronise()
        start = clock.mark()
        result = layer()
        torch.autograd.backward(result.sum())
        end = clock.mark()
        clock.synchronise()
        times.append(clock.elapsed_ms(start, end))
    error = None if way == "linear" else float((result.detach() - _alone(query, key, value, lengths)).abs().max())
    return Measured(np.array(times[options.warmup :]), {}, error)


def _attention(way: str, query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries) -> Layer:
    if way == "block_mask":
        mask = boundaries.sample[:, None] == boundaries.sample
        return lambda: _in_one(query, key, value, mask)
    arranged = Boundaries(boundaries.lengths, boundaries.device, cast(Arrangement, way))
    return lambda: attend(query, key, value, arranged, causal=False)


def _linear(states: Tensor, width: int) -> Layer:
    """The projections of attention and the two of the part behind it, which is four times as wide."""
    parts = nn.Sequential(nn.Linear(width, 3 * width), nn.Linear(3 * width, width)).to(states.device)
    behind = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(states.device)
    return lambda: cast(Tensor, behind(parts(states.flatten(1))))


@torch.no_grad()
def _alone(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """Attention of every sample by itself, [T, heads, channels]."""
    each = (torch.split(states, list(lengths)) for states in (query, key, value))
    return torch.cat([_in_one(q, k, v) for q, k, v in zip(*each, strict=True)])


def _in_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over all tokens but what a mask [T, T] forbids; all states are [T, heads, channels]."""
    q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)

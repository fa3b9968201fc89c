"""What launches the Triton kernels of FlashAttention-2, with the fastest tiles; importing this needs Triton."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from dynbench.kernels import flash_triton_kernels as kernels
from dynbench.kernels.packed_rows import Boundaries

INTERPRETED = not isinstance(kernels.forward, triton.JITFunction)
"""Whether the kernels run in Triton's interpreter."""
INTERPRETED_TILES = {"QUERIES": 32, "KEYS": 16}
"""Small, so that tests with few tokens have several."""
CONFIGS = [
    triton.Config({"QUERIES": queries, "KEYS": keys}, num_warps=warps, num_stages=stages)
    for queries, keys, warps in ((128, 128, 8), (128, 64, 4), (64, 128, 4), (64, 64, 4), (64, 32, 4), (32, 32, 4))
    for stages in (2, 3)
]
# Bytes of shared memory, of which sm_80 has 166,912, and of stack, for keys at d = 128 in bfloat16 with 2 and with 3
# stages, as compiled for sm_80: 128x128 164,864/231,424 and 816/624; 128x64 115,712/182,272 and 336/352; 64x128
# 115,200/148,480 and 12,440/12,192; 64x64 74,240/107,520 and 8/0. At d = 64, 64x128 with 2 stages has 66,048 and 440.
BAD_FOR_WIDE_KEYS = [(128, 128, 2), (128, 128, 3), (128, 64, 3), (64, 128, 2), (64, 128, 3)]
"""Queries, keys and stages beyond shared memory, or spilling, where there are more than 64 channels."""
SHORTEST = 128
"""Up to so many tokens one choice of tiles serves all: a tile or two."""


def fitting_keys(configs: list[triton.Config], states: object, **sizes: Any) -> list[triton.Config]:
    """The tiles that backward by keys is tried with: none that only cost compiling. Arguments are the autotuner's."""
    wide = sizes["CHANNELS"] > 64
    tiles = [(*config.kwargs.values(), config.num_stages) for config in configs]
    return [config for config, tile in zip(configs, tiles, strict=True) if not (wide and tile in BAD_FOR_WIDE_KEYS)]


_NAMES = {"forward": kernels.forward, "queries": kernels.backward_queries, "keys": kernels.backward_keys}
_PRUNED = {"keys": {"early_config_prune": fitting_keys}}
_KEY = ["D", "CAUSAL", "PACKED", "LENGTH"]
TUNED = {
    name: kernel if INTERPRETED else triton.autotune(CONFIGS, _KEY, prune_configs_by=_PRUNED.get(name))(kernel)
    for name, kernel in _NAMES.items()
}
"""The kernels; on a GPU the fastest tiles are found at the first call with a width, a type, a kind of mask and a
power of two of tokens."""


def forward(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, boundaries: Boundaries | None
) -> tuple[Tensor, Tensor]:
    """The result, [batch, n_queries, d], and the logsumexp, float32 [batch, n_queries]; of contiguous states.

    Args:
        query: [batch, n_queries, d].
        key: [batch, n_keys, d].
        value: as `key`.
        is_causal: whether query i sees the keys up to i only.
        boundaries: of the samples of a packed row.
    """
    result, lse = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
    _launch("forward", "QUERIES", (query, key, value, result, lse), is_causal, boundaries)
    return result, lse


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    gradient: Tensor,
    lse: Tensor,
    is_causal: bool,
    boundaries: Boundaries | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, in their type; arguments as of `forward`, with what that gave."""
    delta = (gradient.float() * result.float()).sum(-1)
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    given = (query, key, value, gradient, lse, delta)
    _launch("queries", "QUERIES", (*given, of_query), is_causal, boundaries)
    _launch("keys", "KEYS", (*given, of_key, of_value), is_causal, boundaries)
    return of_query, of_key, of_value


def _launch(
    name: str, divided: str, tensors: tuple[Tensor, ...], is_causal: bool, boundaries: Boundaries | None
) -> None:
    """A program for each tile of what is `divided`, queries or keys, and each row of the batch."""
    query, key = tensors[:2]
    (batch, n_queries, width), n_keys = query.shape, key.shape[1]
    tokens = n_queries if divided == "QUERIES" else n_keys
    length = triton.next_power_of_2(max(n_queries, n_keys, SHORTEST))
    starts = ends = query
    if boundaries is not None:
        starts, ends = (each[boundaries.sample] for each in (boundaries.offsets[:-1], boundaries.offsets[1:]))
    options: dict[str, Any] = {
        "D": width,
        "CHANNELS": max(16, triton.next_power_of_2(width)),
        "CAUSAL": is_causal,
        "PACKED": boundaries is not None,
        "UPCAST": INTERPRETED and query.dtype is torch.bfloat16,
        **(INTERPRETED_TILES if INTERPRETED else {}),
    }
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        TUNED[name][lambda tiles: (triton.cdiv(tokens, tiles[divided]), batch)](
            *tensors, starts, ends, n_queries, n_keys, 1 / math.sqrt(width), length, **options
        )


def chosen_tiles() -> str:
    """Queries and keys of a tile in each kernel that has run last: `forward 128 x 64, queries 64 x 64, …`."""
    chosen = {name: INTERPRETED_TILES if INTERPRETED else kernel.best_config.kwargs for name, kernel in TUNED.items()}
    return ", ".join(f"{name} {tiles['QUERIES']} x {tiles['KEYS']}" for name, tiles in chosen.items())

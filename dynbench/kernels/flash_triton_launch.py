"""What launches the Triton kernels of FlashAttention-2, with the fastest tiles; importing this needs Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from dynbench.kernels import flash_triton_kernels as kernels
from dynbench.kernels.flash_triton_tiles import ALL_TILES, tiles_of
from dynbench.kernels.packed_attention import Boundaries

INTERPRETED = not isinstance(kernels.forward, triton.JITFunction)
"""Whether the kernels run in Triton's interpreter."""
INTERPRETED_TILES = {"QUERIES": 32, "KEYS": 16}
"""Small, so that tests with few tokens have several."""
CONFIGS = {
    tile: triton.Config({"QUERIES": tile.queries, "KEYS": tile.keys}, num_warps=tile.warps, num_stages=tile.stages)
    for tile in ALL_TILES
}
SHORTEST = 128
"""Up to so many tokens one choice of tiles serves all: a tile or two."""


def fitting(name: str, _: object, states: Mapping[str, Tensor], **sizes: Any) -> list[triton.Config]:
    """Of a kernel, the tiles for such states; arguments but the first are the autotuner's."""
    return [CONFIGS[tile] for tile in tiles_of(name, sizes["CHANNELS"], states["q_all"].dtype)]


def _tuned(name: str, kernel: Any) -> Any:
    if INTERPRETED:
        return kernel
    key = ["D", "CAUSAL", "PACKED", "LENGTH"]
    fits = {"early_config_prune": partial(fitting, name)}
    return triton.autotune(list(CONFIGS.values()), key, prune_configs_by=fits)(kernel)


_NAMES = {"forward": kernels.forward, "queries": kernels.backward_queries, "keys": kernels.backward_keys}
TUNED = {name: _tuned(name, kernel) for name, kernel in _NAMES.items()}
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

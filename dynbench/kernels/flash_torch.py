"""FlashAttention-2 (Dao 2023, arXiv:2307.08691) in PyTorch: tiles of scores, never all of them.

Forward keeps for every query the largest score so far and the sum of the weights relative to it, and rescales what it
summed when a larger one comes. Backward computes the tiles again from the logsumexp: with P the weights and O the
result, dS = P * (dO V^T - D), where D = rowsum(O * dO). Both need memory for one tile beside what is linear in the
number of tokens.

What decides the speed on a CPU: tiles that stay in the cache, and buffers that are allocated once. Powers are of two,
because the vectorised exp of MKL becomes a hundred times slower where the result is below the smallest float. -lse and
-D ride along as one more channel of the products, and gradients of keys and values are summed transposed, so that no
product has to turn a tile of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.kernels.flash_shapes import MASKED, prepared
from dynbench.kernels.packed_rows import Boundaries

LOG2E = math.log2(math.e)
ACCELERATOR_SCORES = 2**24
"""Scores of a tile on other devices than CPUs, at most: what keeps them busy without being much memory."""
MOST_THREADS = 8
"""That share the rows of a tile: beyond, waiting for each other takes longer than computing."""


class Tiles(NamedTuple):
    """How many queries and keys a tile has, and of how many rows of the batch at once."""

    queries: int
    keys: int
    rows: int


class FlashAttentionTorch(torch.autograd.Function):
    """`FlashAttentionTorch.apply(query, key, value, is_causal=False, boundaries=None)`: softmax(Q K^T / sqrt(d)) V.

    Args:
        query: [batch, n_queries, d] or [batch, heads, n_queries, d], of any strides and floating type; half precision
            is computed in float32.
        key: [batch, n_keys, d] or [batch, heads, n_keys, d].
        value: as `key`.
        is_causal: query i sees the keys up to i, also where there are more keys or fewer.
        boundaries: of a packed row: queries see the keys of their own sample only.

    Returns:
        As `query`. Backward saves it, the three states, and the logsumexp of every query's scores, [batch, n_queries]
        or [batch, heads, n_queries].

    Raises:
        UsageError: shapes, types or devices that do not belong together, or no tokens.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        boundaries: Boundaries | None = None,
    ) -> Tensor:
        """Tile by tile."""
        states = prepared(query, key, value, boundaries)
        result, lse = _sample_by_sample(partial(forward_tiles, is_causal=is_causal), states, boundaries)
        result, lse = result.view(query.shape).to(states[0].dtype), lse.view(query.shape[:-1])
        ctx.save_for_backward(*states, result, lse)
        ctx.is_causal, ctx.boundaries = is_causal, boundaries
        ctx.given = [(each.shape, each.dtype) for each in (query, key, value)]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """By recomputation; `gradients` has that of the result only."""
        *states, result, lse = ctx.saved_tensors
        flat = (*states, *(each.flatten(0, -3) for each in (result, gradients[0])), lse.flatten(0, -2))
        found = _sample_by_sample(partial(backward_tiles, is_causal=ctx.is_causal), flat, ctx.boundaries)
        return (
            *(each.view(shape).to(dtype) for each, (shape, dtype) in zip(found, ctx.given, strict=True)),
            None,
            None,
        )


def tiles_for(batch: int, device: torch.device) -> Tiles:
    """Tiles of which each thread's part, in the two buffers of the backward pass, stays in a cache of 1 to 2 MB."""
    if device.type != "cpu":
        return Tiles(1024, 1024, max(1, min(batch, ACCELERATOR_SCORES // 1024**2)))
    threads = torch.get_num_threads()
    rows = min(batch, threads)
    return Tiles(256 * min(MOST_THREADS, -(-threads // rows)), 512, rows)


def forward_tiles(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """The result, [batch, n_queries, d], and the logsumexp, [batch, n_queries]; in float32 at least.

    Args:
        query: [batch, n_queries, d].
        key: [batch, n_keys, d].
        value: as `key`.
        is_causal: whether query i sees the keys up to i only.
    """
    query, key, value = (_wide(each) for each in (query, key, value))
    tiles = tiles_for(len(query), query.device)
    result, lse = query.new_zeros(query.shape), query.new_empty(query.shape[:2])
    buffer = _Buffer(query, tiles)
    scaled = query * (LOG2E / math.sqrt(query.shape[-1]))
    for some in _rows_of_batch(query, tiles):
        turned = key[some].transpose(1, 2).contiguous()
        outer = [torch.split(each[some], tiles.queries, 1) for each in (scaled, result, lse)]
        for first, (these, total, logsum) in zip(_starts(query, tiles.queries), zip(*outer, strict=True), strict=True):
            largest = these.new_full((*these.shape[:2], 1), MASKED)
            weight = torch.zeros_like(largest)
            for seen in _seen_keys(first, these.shape[1], key.shape[1], tiles.keys, is_causal):
                scores = buffer.of(these, seen)
                torch.bmm(these, turned[:, :, seen], out=scores)
                if is_causal:
                    _hide_later(scores, first, seen)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                kept = before.sub_(largest).exp2_()
                weights = scores.sub_(largest).exp2_()
                weight.mul_(kept).add_(weights.sum(-1, keepdim=True))
                total.mul_(kept).baddbmm_(weights, value[some, seen])
            total.div_(weight)
            logsum.copy_(weight.log2_().add_(largest).squeeze(-1).div_(LOG2E))
    return result, lse


def backward_tiles(
    query: Tensor, key: Tensor, value: Tensor, result: Tensor, gradient: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, in float32 at least.

    Args:
        query: [batch, n_queries, d].
        key: [batch, n_keys, d].
        value: as `key`.
        result: what `forward_tiles` gave, as `query`.
        gradient: of the result.
        lse: what `forward_tiles` gave beside it.
        is_causal: as there.
    """
    query, key, value, result, gradient = (_wide(each) for each in (query, key, value, result, gradient))
    tiles, scale = tiles_for(len(query), query.device), 1 / math.sqrt(query.shape[-1])
    of_query = query.new_zeros(query.shape)
    of_key, of_value = (key.new_zeros(key.transpose(1, 2).shape) for _ in range(2))
    weights_buffer, scores_buffer = _Buffer(query, tiles), _Buffer(query, tiles)
    for some in _rows_of_batch(query, tiles):
        q, k, dout = query[some] * scale, key[some] * scale, gradient[some]
        delta = (dout * result[some]).sum(-1, keepdim=True)
        # One more channel: the scores come out less the logsumexp, and the gradients of the weights less D.
        q_ext = torch.cat([q * LOG2E, lse[some].unsqueeze(-1) * -LOG2E], -1)
        dout_ext = torch.cat([dout, -delta], -1)
        k_turned, v_turned = (F.pad(each[some].transpose(1, 2), (0, 0, 0, 1), value=1.0) for each in (key, value))
        q_turned, dout_turned = (each.transpose(1, 2).contiguous() for each in (q, dout))
        by_token = (torch.split(each, tiles.queries, 1) for each in (q_ext, dout_ext, of_query[some]))
        turned = (torch.split(each, tiles.queries, 2) for each in (q_turned, dout_turned))
        outer = zip(_starts(query, tiles.queries), *by_token, *turned, strict=True)
        for first, these, dout_these, dq, these_turned, dout_these_turned in outer:
            for seen in _seen_keys(first, these.shape[1], key.shape[1], tiles.keys, is_causal):
                weights, scores = weights_buffer.of(these, seen), scores_buffer.of(these, seen)
                torch.bmm(these, k_turned[:, :, seen], out=weights)
                if is_causal:
                    _hide_later(weights, first, seen)
                weights.exp2_()
                of_value[some, :, seen].baddbmm_(dout_these_turned, weights)
                torch.bmm(dout_these, v_turned[:, :, seen], out=scores)
                scores.mul_(weights)
                dq.baddbmm_(scores, k[:, seen])
                of_key[some, :, seen].baddbmm_(these_turned, scores)
    return of_query, of_key.transpose(1, 2), of_value.transpose(1, 2)


def _seen_keys(first: int, queries: int, n_keys: int, tile: int, is_causal: bool) -> Iterator[slice]:
    """The tiles of keys that queries `first`, `first + 1`, … see; none that all of them are forbidden."""
    last = min(n_keys, first + queries) if is_causal else n_keys
    return (slice(start, min(start + tile, last)) for start in range(0, last, tile))


def _hide_later(scores: Tensor, first: int, seen: slice) -> None:
    """Give keys behind their query the score `MASKED`, in place, where a tile has any.

    Args:
        scores: [rows, queries, keys].
        first: place of its first query.
        seen: places of its keys.
    """
    begin = max(0, first + 1 - seen.start)
    if begin < scores.shape[2]:
        later = scores[:, :, begin:]
        hidden = torch.full(later.shape[1:], MASKED, dtype=scores.dtype, device=scores.device)
        later.add_(hidden.triu_(first + 1 - seen.start - begin))


class _Buffer:
    """Room for the scores of a tile."""

    def __init__(self, states: Tensor, tiles: Tiles) -> None:
        queries, keys = min(tiles.queries, states.shape[1]), tiles.keys
        self._room = states.new_empty(tiles.rows * queries * keys)

    def of(self, queries: Tensor, keys: slice) -> Tensor:
        """Of this tile, [rows, queries, keys], uninitialised."""
        shape = (*queries.shape[:2], keys.stop - keys.start)
        return self._room[: math.prod(shape)].view(shape)


def _wide(states: Tensor) -> Tensor:
    return states.float() if states.dtype in (torch.float16, torch.bfloat16) else states


def _starts(states: Tensor, tile: int) -> range:
    return range(0, states.shape[1], tile)


def _rows_of_batch(states: Tensor, tiles: Tiles) -> Iterator[slice]:
    return (slice(start, start + tiles.rows) for start in range(0, len(states), tiles.rows))


def _sample_by_sample(
    work: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor, ...], boundaries: Boundaries | None
) -> tuple[Tensor, ...]:
    """What `work` makes of tensors [batch, tokens, …], or of those of every sample: equal neighbours at once."""
    if boundaries is None:
        return work(*tensors)
    sizes = [count * length for count, length in boundaries.runs]
    pieces_of = (torch.split(each, sizes, 1) for each in tensors)
    parts = []
    for (count, length), *pieces in zip(boundaries.runs, *pieces_of, strict=True):
        found = work(*(piece.reshape(-1, length, *piece.shape[2:]) for piece in pieces))
        parts.append([each.reshape(-1, count * length, *each.shape[2:]) for each in found])
    return tuple(torch.cat(each, 1) for each in zip(*parts, strict=True))

"""FlashAttention-2 (Dao 2023, arXiv:2307.08691) in PyTorch: tiles of scores, never all of them.

Forward keeps for every query the largest score so far and the sum of the weights relative to it, and rescales what it
summed when a larger one comes. Backward computes the tiles again from the logsumexp: with P the weights and O the
result, dS = P * (dO V^T - D), where D = rowsum(O * dO). Both need memory for one tile beside what is linear in the
number of tokens.

What decides the speed on a CPU: tiles that stay in the cache, a product for each thread (`flash_tiles.py`), results of
products that are contiguous, since those of a batch are otherwise computed one after the other, and buffers that are
allocated once. Powers are of two, because the vectorised exp of MKL becomes a hundred times slower where the result is
below the smallest float. Backward has its tiles turned, [keys, queries], so that only the gradient of the queries needs
a product of a turned tile; -lse and -D ride along as one more channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.kernels.flash_shapes import MASKED, prepared
from dynbench.kernels.flash_tiles import hide_later, seen_keys, stacks_of, tiles_for
from dynbench.kernels.packed_rows import Boundaries

LOG2E = math.log2(math.e)


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


def forward_tiles(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """The result, [batch, n_queries, d], and the logsumexp, [batch, n_queries]; in float32 at least.

    Args:
        query: [batch, n_queries, d].
        key: [batch, n_keys, d].
        value: as `key`.
        is_causal: whether query i sees the keys up to i only.
    """
    query, key, value = (_wide(each) for each in (query, key, value))
    (batch, n_queries, d), n_keys = query.shape, key.shape[1]
    result, lse = torch.empty_like(query), query.new_empty(batch, n_queries)
    for some, stacks in stacks_of(batch, n_queries, tiles_for(batch, query.device)):
        q = stacks.divide(query[some] * (LOG2E / math.sqrt(d)))
        k_turned, v = stacks.for_all(key[some].transpose(1, 2).contiguous()), stacks.for_all(value[some])
        totals, logsums = q.new_zeros(q.shape), q.new_empty(*q.shape[:-1], 1)
        buffer, later = _Buffer(q, min(n_keys, stacks.keys)), stacks.later(q) if is_causal else None
        for first, these, total, logsum in zip(stacks.starts(), q, totals, logsums, strict=True):
            largest = torch.full_like(logsum, MASKED)
            weight = torch.zeros_like(largest)
            for seen in seen_keys(first, stacks.step, n_keys, stacks.keys, is_causal):
                scores = buffer.of(stacks.queries, seen.stop - seen.start)
                torch.bmm(these, k_turned[:, :, seen], out=scores)
                if later is not None:
                    hide_later(scores, later, first, seen)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                kept = before.sub_(largest).exp2_()
                weights = scores.sub_(largest).exp2_()
                weight.mul_(kept).add_(weights.sum(-1, keepdim=True))
                total.mul_(kept).baddbmm_(weights, v[:, seen])
            total.div_(weight)
            logsum.copy_(weight.log2_().add_(largest).div_(LOG2E))
        result[some] = stacks.join(totals, n_queries)
        lse[some] = stacks.join(logsums, n_queries).squeeze(-1)
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
    (batch, n_queries, d), n_keys = query.shape, key.shape[1]
    scale = 1 / math.sqrt(d)
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    for some, stacks in stacks_of(batch, n_queries, tiles_for(batch, query.device)):
        delta = (gradient[some] * result[some]).sum(-1, keepdim=True)
        # One more channel: the scores come out less the logsumexp, and the gradients of the weights less D.
        q = stacks.divide(torch.cat([query[some] * scale, lse[some].unsqueeze(-1).neg()], -1).mul_(LOG2E))
        dout = stacks.divide(torch.cat([gradient[some], -delta], -1))
        k, v = (stacks.for_all(F.pad(each[some], (0, 1), value=1.0)) for each in (key, value))
        dqs = q.new_zeros(*q.shape[:-1], d)
        tiles = list(seen_keys(0, n_queries, n_keys, stacks.keys, False))
        dks, dvs = ([q.new_zeros(len(k), each.stop - each.start, d) for each in tiles] for _ in range(2))
        weights_buffer, scores_buffer = (_Buffer(q, min(n_keys, stacks.keys)) for _ in range(2))
        later = stacks.later(q).transpose(1, 2).contiguous().transpose(1, 2) if is_causal else None
        for first, q_these, dout_these, dq in zip(stacks.starts(), q, dout, dqs, strict=True):
            for tile, seen in enumerate(seen_keys(first, stacks.step, n_keys, stacks.keys, is_causal)):
                size = seen.stop - seen.start
                weights, scores = (each.of(size, stacks.queries) for each in (weights_buffer, scores_buffer))
                torch.bmm(k[:, seen], q_these.transpose(1, 2), out=weights)
                if later is not None:
                    hide_later(weights.transpose(1, 2), later, first, seen)
                weights.exp2_()
                dvs[tile][:, :size].baddbmm_(weights, dout_these[..., :d])
                torch.bmm(v[:, seen], dout_these.transpose(1, 2), out=scores)
                scores.mul_(weights)
                dks[tile][:, :size].baddbmm_(scores, q_these[..., :d])
                dq.baddbmm_(scores.transpose(1, 2), k[:, seen, :d])
        of_query[some] = stacks.join(dqs, n_queries).mul_(scale)
        for seen, dk, dv in zip(tiles, dks, dvs, strict=True):
            of_key[some, seen], of_value[some, seen] = stacks.sum_of(dk).div_(LOG2E), stacks.sum_of(dv)
    return of_query, of_key, of_value


class _Buffer:
    """Room for the scores of a stack of tiles."""

    def __init__(self, divided: Tensor, keys: int) -> None:
        self._tiles = divided.shape[1]
        self._room = divided.new_empty(self._tiles * divided.shape[2] * keys)

    def of(self, *shape: int) -> Tensor:
        """Of this tile, [tiles, *shape], uninitialised."""
        return self._room[: self._tiles * math.prod(shape)].view(self._tiles, *shape)


def _wide(states: Tensor) -> Tensor:
    return states.float() if states.dtype in (torch.float16, torch.bfloat16) else states


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

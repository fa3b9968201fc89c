"""FlashAttention-2 (Dao 2023, arXiv:2307.08691) in PyTorch: tiles of scores, never all of them.

Forward keeps for every query the largest score so far and the sum of the weights relative to it, and rescales what it
summed when a larger one comes. Backward computes the tiles again from the logsumexp: with P the weights and O the
result, dS = P * (dO V^T - D), where D = rowsum(O * dO). Both need memory for one tile beside what is linear in the
number of tokens.

What decides the speed on a CPU: tiles that stay in the cache, results of products that are contiguous, since those of
a batch are otherwise computed one after the other, and buffers that are allocated once. A product of several matrices
is computed by a thread for each, which is faster than all threads at one; so tiles come in stacks of as many as there
are threads. Where fewer rows of the batch are left, a stack holds neighbouring queries of one row. Powers are of two,
because the vectorised exp of MKL becomes a hundred times slower where the result is below the smallest float. Backward
has its tiles turned, [keys, queries], so that only the gradient of the queries needs a product of a turned tile; -lse
and -D ride along as one more channel.

`FlashAttentionCompiled` has a backward pass that is written as formulas over whole matrices, and compiled by
torch.compile. Nothing quadratic is saved between the passes, but within the backward pass there are scores of all
queries by all keys, which tiles do without: it is what these are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.errors import UsageError
from dynbench.kernels.packed_attention import Boundaries

MASKED = -1e30
"""Score of a key that a query must not see: its weight is zero, and a tile of such scores is no NaN."""


def prepared(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The states as [batch, n, d], heads being rows of the batch; under autocast in its type.

    Args:
        query: [batch, n_queries, d] or [batch, heads, n_queries, d].
        key: the same with n_keys.
        value: as `key`.
        boundaries: of the samples of a packed row, the same in every row of the batch.

    Raises:
        UsageError: shapes, types or devices that do not belong together, or no tokens.
    """
    states = {"query": query, "key": key, "value": value}
    shown = ", ".join(f"{name} {list(each.shape)} {each.dtype} on {each.device}" for name, each in states.items())
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in states.values())
    alike = query.shape[:-2] == key.shape[:-2] and query.shape[-1] == key.shape[-1] and key.shape == value.shape
    one_kind = len({(each.dtype, each.device) for each in (query, key, value)}) == 1
    if query.dim() not in (3, 4) or not alike or not one_kind or not query.is_floating_point():
        raise UsageError(
            f"attention of {shown}: these do not belong together",
            "Give [batch, n, d] or [batch, heads, n, d], keys and values of one length, all of one type and device.",
        )
    if not query.numel() or not key.numel():
        raise UsageError(f"attention of {shown}: there are no tokens", "Leave empty batches out.")
    if boundaries is not None and not query.shape[-2] == key.shape[-2] == boundaries.tokens:
        raise UsageError(
            f"attention of {shown}: the samples of the packed row have {boundaries.tokens} tokens together",
            "Give the boundaries of this row, and its queries, keys and values whole.",
        )
    return tuple(each.flatten(0, -3) for each in (query, key, value))  # type: ignore[return-value]


ACCELERATOR_SCORES = 2**24
"""Scores of a stack on other devices than CPUs, at most: what keeps them busy without being much memory."""
MOST_THREADS = 8
"""That share the queries of a row: each has gradients of all keys and values of its own."""


@dataclass(frozen=True)
class Tiles:
    """How many queries and keys a tile has at most, and how many tiles are computed at once."""

    queries: int
    keys: int
    stacked: int


def tiles_for(batch: int, device: torch.device) -> Tiles:
    """Tiles of which the two buffers of the backward pass stay in a cache of 2 MB."""
    if device.type != "cpu":
        return Tiles(1024, 1024, max(1, min(batch, ACCELERATOR_SCORES // 1024**2)))
    threads = torch.get_num_threads()
    if batch < threads:
        return Tiles(128, 1024, min(threads, MOST_THREADS))
    return Tiles(256, 1024, threads)


@dataclass(frozen=True)
class Stacks:
    """How the queries of some rows of the batch are divided, into stacks of tiles of one size.

    Attributes:
        rows: of the batch.
        parts: tiles of neighbouring queries that a stack has of each row.
        count: of stacks.
        queries: of a tile; behind the last of a row come zeros.
        keys: of a tile at most; whole numbers of `step`, so that the diagonal lies alike in all.
    """

    rows: int
    parts: int
    count: int
    queries: int
    keys: int

    @property
    def step(self) -> int:
        """Queries of a row in a stack."""
        return self.parts * self.queries

    def starts(self) -> range:
        """Place of the first query of every stack."""
        return range(0, self.count * self.step, self.step)

    def divide(self, states: Tensor) -> Tensor:
        """[rows, n, d] as [stacks, tiles, queries, d]."""
        padded = F.pad(states, (0, 0, 0, self.count * self.step - states.shape[1]))
        by_stack = padded.view(self.rows, self.count, self.step, -1).transpose(0, 1)
        return by_stack.reshape(self.count, self.rows * self.parts, self.queries, -1)

    def join(self, stacks: Tensor, n: int) -> Tensor:
        """What `divide` has divided as [rows, n, d]."""
        by_row = stacks.view(self.count, self.rows, self.step, -1).transpose(0, 1)
        return by_row.reshape(self.rows, self.count * self.step, -1)[:, :n]

    def for_all(self, states: Tensor) -> Tensor:
        """States of keys, [rows, …], for every tile of a stack, [tiles, …]; not copied."""
        return states if self.parts == 1 else states.expand(self.parts, *states.shape[1:])

    def sum_of(self, gradients: Tensor) -> Tensor:
        """Gradients of such states, [tiles, …], as of rows."""
        return gradients if self.parts == 1 else gradients.sum(0, keepdim=True)

    def later(self, like: Tensor) -> Tensor:
        """`MASKED` where a key comes after the query, else zero: [parts, queries, keys], of a stack on the diagonal."""
        full = like.new_full((self.step, self.step), MASKED).triu_(1)
        return full.view(self.parts, self.queries, self.step)


def stacks_of(batch: int, queries: int, tiles: Tiles) -> Iterator[tuple[slice, Stacks]]:
    """Which rows of the batch go together, and how they are divided: as many rows as a stack has tiles, or one.

    Args:
        batch: rows.
        queries: of each.
        tiles: the most of each.
    """
    stacked = batch // tiles.stacked * tiles.stacked
    for start in range(0, stacked, tiles.stacked):
        yield slice(start, start + tiles.stacked), _stacks(tiles.stacked, 1, queries, tiles)
    for row in range(stacked, batch):
        yield slice(row, row + 1), _stacks(1, min(tiles.stacked, MOST_THREADS), queries, tiles)


def _stacks(rows: int, parts: int, queries: int, tiles: Tiles) -> Stacks:
    most = min(tiles.queries, math.isqrt(tiles.queries * tiles.keys // parts))  # a stack sees as many keys at once
    count = -(-queries // (parts * most))
    each = -(-queries // (parts * count))
    return Stacks(rows, parts, count, each, max(1, round(tiles.keys / (parts * each))) * parts * each)


def seen_keys(first: int, queries: int, n_keys: int, tile: int, is_causal: bool) -> Iterator[slice]:
    """The tiles of keys that queries `first`, `first + 1`, … see; none that all of them are forbidden."""
    last = min(n_keys, first + queries) if is_causal else n_keys
    return (slice(start, min(start + tile, last)) for start in range(0, last, tile))


def hide_later(scores: Tensor, later: Tensor, first: int, seen: slice) -> None:
    """Give keys behind their query the score `MASKED`, in place, where a tile has any.

    Args:
        scores: [tiles, queries, keys].
        later: of `Stacks.later`.
        first: place of the first query of the stack.
        seen: places of the keys.
    """
    if seen.stop > first:
        on_diagonal = scores.view(-1, *later.shape[:2], scores.shape[-1])[..., first - seen.start :]
        on_diagonal.add_(later[..., : seen.stop - first])


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
        return recomputed(ctx, gradients[0], backward_tiles)


def recomputed(ctx: Any, gradient: Tensor, work: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    """What a backward pass gives: gradients of what the forward pass was given.

    Args:
        ctx: holds what `FlashAttentionTorch.forward` saved.
        gradient: of the result.
        work: takes and gives what `backward_tiles` does.
    """
    *states, result, lse = ctx.saved_tensors
    flat = (*states, *(each.flatten(0, -3) for each in (result, gradient)), lse.flatten(0, -2))
    found = _sample_by_sample(partial(work, is_causal=ctx.is_causal), flat, ctx.boundaries)
    given = zip(found, ctx.given, strict=True)
    return (*(each.view(shape).to(dtype) for each, (shape, dtype) in given), None, None)


def forward_tiles(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """The result, [batch, n_queries, d], and the logsumexp, [batch, n_queries]; in float32 at least.

    Args:
        query: [batch, n_queries, d].
        key: [batch, n_keys, d].
        value: as `key`.
        is_causal: whether query i sees the keys up to i only.
    """
    query, key, value = (wide(each) for each in (query, key, value))
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
                rescale = before.sub_(largest).exp2_()
                weights = scores.sub_(largest).exp2_()
                weight.mul_(rescale).add_(weights.sum(-1, keepdim=True))
                total.mul_(rescale).baddbmm_(weights, v[:, seen])
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
    query, key, value, result, gradient = (wide(each) for each in (query, key, value, result, gradient))
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


def wide(states: Tensor) -> Tensor:
    """In float32 at least."""
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


class FlashAttentionCompiled(FlashAttentionTorch):
    """As `FlashAttentionTorch`, forward too, but for its backward pass."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """By recomputation; `gradients` has that of the result only."""
        return recomputed(ctx, gradients[0], _compiled())


@cache
def _compiled() -> Callable[..., tuple[Tensor, ...]]:
    """Made when it is first needed: torch's compiler is slow to import."""
    return torch.compile(backward_whole)


def backward_whole(
    query: Tensor, key: Tensor, value: Tensor, result: Tensor, gradient: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values as `backward_tiles` gives them, from the same."""
    query, key, value, result, gradient = (wide(each) for each in (query, key, value, result, gradient))
    scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, MASKED)
    weights = (scores - lse.unsqueeze(-1)).exp()
    delta = (gradient * result).sum(-1, keepdim=True)
    of_scores = weights * (gradient @ value.transpose(-1, -2) - delta) * scale
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ gradient

"""How FlashAttention-2 in PyTorch divides queries and keys, so that every thread has products of its own.

A product of several matrices is computed by a thread for each, which is faster than all threads at one; so tiles come
in stacks of as many as there are threads. Where fewer rows of the batch are left, a stack holds neighbouring queries of
one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dynbench.kernels.flash_shapes import MASKED

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
    together = batch // tiles.stacked * tiles.stacked
    for start in range(0, together, tiles.stacked):
        yield slice(start, start + tiles.stacked), _stacks(tiles.stacked, 1, queries, tiles)
    for row in range(together, batch):
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

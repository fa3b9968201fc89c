"""A rank's own stream of samples: what `prefix` takes from, one buffer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dynbench.schedule.plan import DataOrder, FloatArray, IntArray
from dynbench.schedule.policy import Problem

MIN_BUFFER = 32
"""Samples per rank that an automatic buffer holds at least."""


def buffer_size(problem: Problem) -> int:
    """Samples that each rank holds (K): as given, else enough that no plan is cut short, and at least 32."""
    if problem.buffer is not None:
        return problem.buffer
    return automatic_buffer(problem.global_batch, problem.workers)


def automatic_buffer(global_batch: int, workers: int) -> int:
    """As many samples as one rank of a step can get, and at least `MIN_BUFFER`."""
    return max(MIN_BUFFER, global_batch - workers + 1)


class RankStream:
    """The samples of one rank in order of arrival, epoch after epoch.

    Epoch e is every G-th sample of that epoch's permutation, as a distributed sampler shards it; a rank begins its
    next epoch by itself, so none of its samples is lost or seen twice within one.

    Args:
        problem: data, order and cost.
        rank: this rank.
    """

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem, self._rank = problem, rank
        self._size = buffer_size(problem)
        self._order = problem.data_order()
        self._epoch = 0
        self._start = 0
        self._ids = np.empty(0, dtype=np.int64)
        self._lengths = self._ids
        self._refill()

    @property
    def ids(self) -> IntArray:
        """The buffer: the next K samples, shape [K]."""
        return self._ids[self._start : self._start + self._size]

    @property
    def lengths(self) -> IntArray:
        """Padded lengths of the buffer, shape [K], tokens."""
        return self._lengths[self._start : self._start + self._size]

    @property
    def extra(self) -> FloatArray:
        """What the samples of the buffer cost besides, shape [K], tokens."""
        return np.broadcast_to(self._problem.extra_of(self.ids), self.ids.shape)

    def take(self, count: int) -> IntArray:
        """Remove and return the first `count` samples of the buffer."""
        taken = self.ids[:count]
        self._start += len(taken)
        if self._start + self._size > len(self._ids):
            self._refill()
        return taken

    def _refill(self) -> None:
        ids = self._ids[self._start :]
        while len(ids) < self._size:
            ids = np.concatenate((ids, _shard(self._order, self._epoch, self._rank, self._problem.workers)))
            self._epoch += 1
        self._ids, self._start = ids, 0
        self._lengths = self._problem.padded_lengths[ids]


def candidate_costs(
    problem: Problem, lengths: IntArray, ranks: Sequence[int], extra: FloatArray | float = 0.0
) -> FloatArray:
    """Cost over speed of the first 1, 2, …, K samples of each buffer, infinite beyond its rank's capacity.

    Args:
        problem: cost, capacities and speeds.
        lengths: padded lengths of the buffers, shape [n, K], tokens.
        ranks: whose buffers they are, shape [n].
        extra: what the samples cost besides, same shape, tokens.

    Returns:
        Rows that do not decrease, shape [n, K].
    """
    longest, counts = np.maximum.accumulate(lengths, axis=1), np.arange(1, lengths.shape[1] + 1)
    besides = np.cumsum(np.broadcast_to(extra, lengths.shape), axis=1)
    costs: FloatArray = problem.cost.cost_padded(counts, longest, besides) / problem.relative_speeds()[ranks, None]
    if not problem.capacity.unlimited:
        limits = np.stack([problem.capacity.limits_of(rank, row) for rank, row in zip(ranks, longest, strict=True)])
        costs[counts > limits] = np.inf
    return costs


@lru_cache(maxsize=2)
def _permutations(order: DataOrder) -> Callable[[int], IntArray]:
    """The order's permutations, kept up to 64 MB: large buffers of many ranks on little data span tens of epochs."""
    return lru_cache(maxsize=max(4, 2**23 // order.n_samples))(order.permutation)


def _shard(order: DataOrder, epoch: int, rank: int, workers: int) -> IntArray:
    return _permutations(order)(epoch)[rank::workers]

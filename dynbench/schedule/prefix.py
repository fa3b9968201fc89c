"""Each rank keeps its own stream of samples; only how many it takes from the front is planned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.capacity import batch_too_large, sample_too_long
from dynbench.schedule.plan import DataOrder, FloatArray, IntArray, StepPlan, integers, single
from dynbench.schedule.policy import Policy, Problem
from dynbench.schedule.prefix_counts import check_enumerable, room_of, solve_counts

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
        self._refill(integers([]))

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
            self._refill(self._ids[self._start :])
        return taken

    def _refill(self, ids: IntArray) -> None:
        """Begin with these, and go on with further epochs."""
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
        limits = np.stack([problem.capacity.limits_of(rank, longest[row]) for row, rank in enumerate(ranks)])
        costs[counts > limits] = np.inf
    return costs


@lru_cache(maxsize=2)
def _permutations(order: DataOrder) -> Callable[[int], IntArray]:
    """The order's permutations, kept up to 64 MB: large buffers of many ranks on little data span tens of epochs."""
    return lru_cache(maxsize=max(4, 2**23 // order.n_samples))(order.permutation)


def _shard(order: DataOrder, epoch: int, rank: int, workers: int) -> IntArray:
    return _permutations(order)(epoch)[rank::workers]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefixStep:
    """One step as it was solved.

    Attributes:
        plan: the step's plan.
        costs: of each rank's first 1, 2, …, K samples, infinite beyond its capacity, shape [G, K].
        counts: samples per rank, shape [G].
    """

    plan: StepPlan
    costs: FloatArray
    counts: IntArray


class Prefix(Policy):
    """Exact least maximum over the counts, then least variance; see `prefix_counts`.

    Raises:
        UsageError: the buffers together hold less than the global batch, or too many plans for `enumerate`.
        NothingFits: the capacities cannot hold the samples at the front of the streams.
    """

    level = "stream"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        buffer, ranks, batch = buffer_size(problem), problem.workers, problem.global_batch
        if ranks * buffer < batch:
            raise UsageError(
                f"schedule.buffer: {ranks} ranks of {buffer} samples hold less than train.global_batch {batch}",
                f"Use a buffer of at least {-(-batch // ranks)}, or a global batch of at most {ranks * buffer}.",
            )
        if problem.solver == "enumerate":
            least = [problem.capacity.row(rank)[-1][1] for rank in range(ranks)]
            check_enumerable(np.clip(least, 1, min(buffer, batch)), batch)
        every_count = buffer > batch - ranks
        self._little_choice = ranks * buffer < 2 * batch and not every_count

    def warn_of_little_choice(self) -> None:
        """Say so where the buffers hold too few samples to choose among; a training run is told before its launch."""
        if self._little_choice:
            buffer, ranks, batch = buffer_size(self.problem), self.problem.workers, self.problem.global_batch
            logger.warning(
                "schedule.buffer: %d ranks of %d samples are less than twice the global batch of %d, which leaves "
                "little to choose; use at least %d",
                *(ranks, buffer, batch, -(-2 * batch // ranks)),
            )

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on; the steps before it are replayed."""
        return (step.plan for step in self.steps(start))

    def steps(self, start: int = 0) -> Iterator[PrefixStep]:
        """As `plans`, with the costs that each was solved from."""
        problem = self.problem
        ranks = range(problem.workers)
        streams = [RankStream(problem, rank) for rank in ranks]
        for step in count():
            lengths = np.stack([stream.lengths for stream in streams])
            extra = np.stack([stream.extra for stream in streams])
            costs = candidate_costs(self.problem, lengths, ranks, extra)
            if not problem.capacity.unlimited:
                self._check(room_of(costs), streams, step)
            solution = solve_counts(costs, problem.global_batch, problem.solver)
            taken = list(map(RankStream.take, streams, solution.counts.tolist()))
            if step >= start:
                yield PrefixStep(StepPlan(step, single(taken), solution.exact), costs, solution.counts)

    def _check(self, limits: IntArray, streams: list[RankStream], step: int) -> None:
        if limits.min() == 0:
            rank = int(limits.argmin())
            stream = streams[rank]
            raise sample_too_long(step, int(stream.ids[0]), int(stream.lengths[0]), f"rank {rank}")
        require_room(limits, self.problem.global_batch, step)


def require_room(limits: IntArray, global_batch: int, step: int) -> None:
    """Refuse limits, shape [G], that cannot hold the global batch.

    Raises:
        NothingFits: with the largest global batch that fits.
    """
    if int(limits.sum()) < global_batch:
        raise batch_too_large(step, global_batch, int(limits.sum()), may_split=False)

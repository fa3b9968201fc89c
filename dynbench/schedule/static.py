"""The baseline: every rank gets the same number of samples, as a distributed sampler deals them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.capacity import batch_too_large, row_too_short, rows_too_short, sample_too_long
from dynbench.schedule.plan import IntArray, Share, StepPlan, in_turn
from dynbench.schedule.policy import BatchPolicy, Problem, check_enough_samples


class Static(BatchPolicy):
    """Rank g takes samples g, g+G, g+2G, … of each global batch, in order of arrival.

    Several micro-batches cut a rank's share in that order into near-equal parts.

    Raises:
        UsageError: the global batch is not a multiple of the world size, or less than one sample per micro-batch.
        NothingFits: a share does not fit into a rank's capacity.
    """

    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        batch, ranks = problem.global_batch, problem.workers
        if batch % ranks:
            below = batch // ranks * ranks
            raise UsageError(
                f"train.global_batch: {batch} is not a multiple of the {ranks} ranks, as static needs",
                f"Use {below} or {below + ranks}.",
            )
        check_enough_samples(problem)

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """Columns of the global batch, one per rank."""
        ranks, packed = self.problem.workers, self.problem.packed
        plans = []
        for step, batch in enumerate(batches, first_step):
            shares = np.ascontiguousarray(in_turn(batch, ranks))
            if packed:
                dealt = tuple(self._rows(share, rank, step) for rank, share in enumerate(shares))
            else:
                parts = self._parts(shares, step)
                dealt = tuple(_cut(share, parts) for share in shares)
            plans.append(StepPlan(step, dealt, packed=packed))
        return plans

    def check(self, batches: Sequence[IntArray], first_step: int) -> None:
        """As the base, without cutting padded shares."""
        if self.problem.packed:
            self.deal(batches, first_step)
            return
        for step, batch in enumerate(batches, first_step):
            self._parts(in_turn(batch, self.problem.workers), step)

    def _rows(self, share: IntArray, rank: int, step: int) -> Share:
        """A rank's share as packed rows; with auto the fewest that hold it."""
        wanted, capacity = self.problem.micro_batches, self.problem.capacity
        if capacity.unlimited:
            return _cut(share, 1 if wanted == "auto" else wanted)
        lengths = self.problem.lengths[share]
        limits = capacity.limits_of(rank, lengths)
        if np.any(lengths > limits):
            longest = int(lengths.argmax())
            raise row_too_short(step, int(share[longest]), int(lengths[longest]), f"rank {rank}")
        for parts in range(1, len(share) + 1) if wanted == "auto" else (wanted,):
            rows = np.array_split(np.arange(len(share)), parts)
            if all(lengths[row].sum() <= limits[row].min() for row in rows):
                return tuple(share[row] for row in rows)
        raise rows_too_short(step, len(share), int(lengths.sum()), parts)

    def _limits(self, shares: IntArray) -> IntArray:
        """Largest micro-batch of each rank at its longest sample, shape [G]."""
        longest = self.problem.padded_lengths[shares].max(axis=1)
        return np.array([self.problem.capacity.limit(rank, length) for rank, length in enumerate(longest.tolist())])

    def _parts(self, shares: IntArray, step: int) -> int:
        """Micro-batches per rank."""
        wanted, share_size = self.problem.micro_batches, int(shares.shape[1])
        if self.problem.capacity.unlimited:
            return 1 if wanted == "auto" else wanted
        limits = self._limits(shares)
        least = int(limits.min())
        if least == 0:
            rank = int(limits.argmin())
            sample = int(shares[rank, self.problem.padded_lengths[shares[rank]].argmax()])
            raise sample_too_long(step, sample, int(self.problem.padded_lengths[sample]), f"rank {rank}")
        if wanted == "auto":
            return -(-share_size // least)
        if share_size > least * wanted:
            largest = least * wanted * self.problem.workers
            raise batch_too_large(step, self.problem.global_batch, largest, self.problem.equal_ranks)
        return wanted


def _cut(share: IntArray, parts: int) -> Share:
    """A share as `parts` near-equal micro-batches, in order."""
    if parts == 1:
        return (share,)
    return tuple(np.array_split(share, parts))

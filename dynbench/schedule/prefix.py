"""Each rank keeps its own stream; only how many samples it takes from the front is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.capacity import batch_too_large, sample_too_long
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan, single
from dynbench.schedule.policy import Policy, Problem
from dynbench.schedule.prefix_enumerate import check_enumerable, room_of
from dynbench.schedule.prefix_solvers import solve_counts
from dynbench.schedule.streams import RankStream, buffer_size, candidate_costs

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
    """Exact least maximum over the counts, then least variance; see `prefix_solvers`.

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
            lengths, extra = (np.stack(parts) for parts in zip(*((s.lengths, s.extra) for s in streams), strict=True))
            costs = candidate_costs(self.problem, lengths, ranks, extra)
            if not problem.capacity.unlimited:
                self._check(room_of(costs), streams, step)
            solution = solve_counts(costs, problem.global_batch, problem.solver)
            taken = [stream.take(n) for stream, n in zip(streams, solution.counts.tolist(), strict=True)]
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

"""Plans for rank-private streams: costs are gathered to rank 0, which solves and broadcasts the counts."""

from __future__ import annotations

import numpy as np
import torch.distributed as dist

from dynbench.engine.rank.exchange import broadcast_integers, gather_floats
from dynbench.schedule import fits
from dynbench.schedule.plan import IntArray, Share
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import require_room
from dynbench.schedule.prefix_enumerate import room_of
from dynbench.schedule.prefix_solvers import solve_counts
from dynbench.schedule.streams import RankStream, candidate_costs


class GatheredPlans:
    """`prefix` with `schedule.exchange=gather`; the same plans as every rank would make by itself.

    Args:
        problem: only this rank's part of its lengths is looked at.
        rank: this worker's number.
        group: the workers; None is all ranks.
    """

    def __init__(self, problem: Problem, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._problem = problem
        self._rank = rank
        self._stream = RankStream(problem, rank)

    def share(self, step: int) -> Share:
        """This rank's next samples; a collective.

        Raises:
            NothingFits: the capacities cannot hold the samples at the front of the streams.
        """
        stream = self._stream
        costs = candidate_costs(self._problem, stream.lengths[None], [self._rank], stream.extra)[0]
        if np.isinf(costs[0]):
            raise fits.sample_too_long(step, int(stream.ids[0]), int(stream.lengths[0]), f"rank {self._rank}")
        offers = gather_floats(costs, self._group)
        counts = None if offers is None else self._solve(step, offers)
        counts = broadcast_integers(counts, self._problem.workers, self._group)
        return (stream.take(int(counts[self._rank])),)

    def all_shares(self) -> None:
        """Streams are private to their ranks."""

    def observe(self, share: Share, compute_ms: float) -> None:
        """Of no use: the speeds are given."""

    def _solve(self, step: int, costs: np.ndarray) -> IntArray:
        """Counts from every rank's candidate costs, shape [G, K]; shape [G]."""
        require_room(room_of(costs), self._problem.global_batch, step)
        return solve_counts(costs, self._problem.global_batch, self._problem.solver).counts

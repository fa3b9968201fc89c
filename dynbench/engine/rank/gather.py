"""Plans for rank-private streams: costs are gathered to rank 0, which solves and broadcasts the counts."""

from __future__ import annotations

import numpy as np

from dynbench.engine.rank.exchange import broadcast_integers, gather_floats
from dynbench.schedule import fits
from dynbench.schedule.plan import IntArray, Share
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import RankStream, require_room, solve_counts


class GatheredPlans:
    """`prefix` with `schedule.exchange=gather`; the same plans as every rank would make by itself.

    Args:
        problem: only this rank's part of its lengths is looked at.
        rank: this rank.
    """

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem = problem
        self._rank = rank
        self._stream = RankStream(problem, rank)

    def share(self, step: int) -> Share:
        """This rank's next samples; a collective.

        Raises:
            NothingFits: the capacities cannot hold the samples at the front of the streams.
        """
        stream = self._stream
        limit = stream.limit()
        if limit == 0:
            raise fits.sample_too_long(step, int(stream.ids[0]), int(stream.lengths[0]), f"rank {self._rank}")
        offers = gather_floats(np.append(stream.candidate_costs(), limit), self._rank, self._problem.workers)
        counts = None if offers is None else self._solve(step, offers)
        counts = broadcast_integers(counts, self._problem.workers)
        return (stream.take(int(counts[self._rank])),)

    def observe(self, share: Share, compute_ms: float) -> None:
        """Of no use: the speeds are given."""

    def _solve(self, step: int, offers: np.ndarray) -> IntArray:
        """Counts from every rank's candidate costs and, in the last column, its limit; shape [G]."""
        costs, limits = offers[:, :-1], offers[:, -1].astype(np.int64)
        require_room(limits, self._problem.global_batch, step)
        return solve_counts(costs, self._problem.global_batch, limits, self._problem.solver).counts

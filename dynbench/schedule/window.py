"""Several global batches dealt together, so that few steps are dear and the ranks of each step finish together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.partition import Partition, cut
from dynbench.schedule.partition_search import least_maximum, search_weights, sort_longest_first
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan, single
from dynbench.schedule.policy import BatchPolicy, Problem
from dynbench.schedule.window_search import search
from dynbench.schedule.window_sweep import SortedWindow


class Window(BatchPolicy):
    """Least sum over a window's steps of the slowest rank's cost; a heuristic.

    Every step gets exactly B of the window's samples, and the steps' mean lengths are spread no more than those of
    random batches; the steps come in random order. Never worse than `partition` on the same batches, whose plan is the
    fallback; with W=1, and for a lone batch at an epoch's end, it is `partition`. Ranks that differ are planned as if
    all had the least capacity and the same speed; each step's samples are then split by `partition`, which knows them.

    N micro-batches per rank are planned as N ranks each, and a second cost of the samples is not looked at; each step's
    samples are then split by `partition`, too. With `auto`, N is tried from 1 on until it no longer makes the window
    faster.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """

    level = "window"
    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._partition = Partition(problem)

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """As the base, from the next window on."""
        super().change_speeds(speeds)
        self._partition.change_speeds(speeds)

    @property
    def window(self) -> int:
        """Global batches dealt together (W)."""
        return self.problem.window

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """Plans of consecutive steps, with the samples of their global batches exchanged between them."""
        if len(batches) > 1:
            together = self._together(np.concatenate(batches), len(batches), first_step)
            if together is not None and self._total_cost(together) <= self._cost_alone(batches, first_step):
                return together
        alone = self._partition.deal(batches, first_step)
        return alone if len(batches) == 1 else [replace(plan, exact="none") for plan in alone]

    def check(self, batches: Sequence[IntArray], first_step: int) -> None:
        """As the base; the search is run only where `partition`, the fallback, cannot deal the batches one by one."""
        try:
            self._partition.check(batches, first_step)
        except NothingFits:
            self.deal(batches, first_step)

    def _together(self, ids: IntArray, steps: int, first_step: int) -> Sequence[StepPlan] | None:
        """The window dealt with as many micro-batches per rank as asked for, or as are best; None without a plan."""
        problem, wanted = self.problem, self.problem.micro_batches
        if wanted != "auto":
            return self._dealt(ids, steps, first_step, wanted)
        best, least = None, math.inf
        for parts in range(1, problem.global_batch // problem.workers + 1):
            plans = self._dealt(ids, steps, first_step, parts)
            cost = math.inf if plans is None else self._total_cost(plans)
            if best is not None and cost >= least:
                break
            best, least = plans, cost
            if best is not None and problem.cost.cost_type != "measured":
                break
        return best

    def _dealt(self, ids: IntArray, steps: int, first_step: int, parts: int) -> Sequence[StepPlan] | None:
        """The window dealt with `parts` micro-batches per rank."""
        problem = self.problem
        shares = plan_window(
            problem.lengths[ids],
            problem.workers * parts,
            steps,
            problem.cost,
            seed=[problem.seed, first_step],
            limits=self._limits(problem.padded_lengths[ids]),
        )
        if shares is None:
            return None
        groups = [[ids[positions] for positions in step] for step in shares]
        if self._dealt_again:
            split = self._partition.deal([np.concatenate(step) for step in groups], first_step)
            return [replace(plan, exact="none") for plan in split]
        return [StepPlan(step, single(group)) for step, group in enumerate(groups, first_step)]

    def _cost_alone(self, batches: Sequence[IntArray], first_step: int) -> float:
        """What the steps cost if `partition` deals each batch by itself; infinite where one does not fit."""
        problem = self.problem
        if self._dealt_again:
            try:
                return self._total_cost(self._partition.deal(batches, first_step))
            except NothingFits:
                return math.inf
        total = 0.0
        for ids in batches:
            lengths = problem.padded_lengths[ids]
            lengths = lengths[sort_longest_first(lengths)]
            counts = least_maximum(search_weights(problem.cost, lengths), problem.workers, self._limits(lengths))
            if counts is None:
                return math.inf
            starts = np.cumsum([0, *counts[:-1]])
            total += float(problem.cost.cost_padded(counts, lengths[starts]).max())
        return total / float(problem.relative_speeds()[0])

    @property
    def _dealt_again(self) -> bool:
        """Whether `partition` splits each step's samples, as it knows what the search does not."""
        problem = self.problem
        return not problem.equal_ranks or problem.micro_batches != 1 or problem.extra is not None

    def _limits(self, padded_lengths: IntArray) -> IntArray | None:
        """Largest share that every rank can hold at these lengths, same shape; None for no limit."""
        if self.problem.capacity.unlimited:
            return None
        limits: IntArray = self.problem.capacity.limits(self.problem.workers, padded_lengths).min(axis=0)
        return limits

    def _total_cost(self, plans: Sequence[StepPlan]) -> float:
        return sum(step_cost(plan, self.problem) for plan in plans)


def plan_window(
    lengths: IntArray,
    workers: int,
    steps: int,
    cost: CostModel,
    *,
    seed: int | Sequence[int] = 0,
    limits: IntArray | None = None,
) -> list[list[IntArray]] | None:
    """Deal the samples of several global batches over equal ranks.

    Args:
        lengths: tokens before padding, shape [W*B], in any order.
        workers: ranks that train (G).
        steps: global batches (W), at least 2.
        cost: predicted cost of a micro-batch.
        seed: of the search, and of the order of the steps; the same seed gives the same plan.
        limits: largest share that may hold each sample, shape [W*B], non-increasing in length; none by default.

    Returns:
        Per step and rank, positions in `lengths`; None when no plan was found that keeps to the limits and to the
        allowed spread of the steps' mean lengths.
    """
    order, rng = sort_longest_first(lengths), np.random.default_rng(seed)
    sorted_limits = None if limits is None else limits[order].tolist()
    found = search(SortedWindow(lengths[order], steps, workers, cost, sorted_limits), rng)
    if found is None:
        return None
    # The search deals the longest samples first: as it leaves them, a window's first steps would be its dearest.
    places = rng.permutation(steps)
    shares: list[list[IntArray]] = [[] for _ in range(steps)]
    for step, positions in zip(found[0], cut(order, found[1]), strict=True):
        shares[places[step]].append(positions)
    return shares

"""The global batch that `static` would take, dealt anew so that the slowest rank is as fast as it can be."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.errors import NothingFits
from dynbench.schedule import capacity
from dynbench.schedule.micro_batches import MicroBatchPlanner
from dynbench.schedule.packed import PackedRows
from dynbench.schedule.partition_search import (
    fits_table,
    group_costs,
    largest_groups,
    least_maximum,
    least_total,
    reach,
    sort_longest_first,
)
from dynbench.schedule.partition_unequal import UnequalRanks
from dynbench.schedule.plan import Exactness, FloatArray, IntArray, StepPlan, cut, single
from dynbench.schedule.policy import BatchPolicy, Problem


class Partition(BatchPolicy):
    """Exact least maximum of one micro-batch per rank, then least total cost.

    Groups of samples that follow each other in sorted length are enough; `partition_search` says why. Where samples
    have a second cost they are not, so that only few samples are dealt exactly, and none under unequal capacities.

    Equal ranks: exact in the maximum at any size, in the total up to `partition_search.TABLE_LIMIT`. Unequal ranks:
    see `partition_unequal`. Several micro-batches per rank: see `micro_batches`. Packed rows: see `packed`.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """

    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._prepare()

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """As the base; the classes of equal ranks are found anew."""
        super().change_speeds(speeds)
        self._prepare()

    def _prepare(self) -> None:
        problem = self.problem
        packed = problem.packed
        self._packed = PackedRows(problem) if packed else None
        self._unequal = None if packed or problem.equal_ranks else UnequalRanks(problem)
        # A second cost is for the planner of micro-batches, one per rank too, as far as capacities are equal.
        second = problem.extra is not None and problem.capacity.equal(problem.workers)
        micro = not packed and (problem.micro_batches != 1 or second)
        self._micro = MicroBatchPlanner(problem) if micro else None

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """Plans of consecutive global batches, one by one."""
        return [self._plan(ids, step) for step, ids in enumerate(batches, first_step)]

    def check(self, batches: Sequence[IntArray], first_step: int) -> None:
        """As the base, by greedy sweeps under the capacities alone."""
        if self.problem.capacity.unlimited:
            return
        for step, batch in enumerate(batches, first_step):
            ids, lengths = self._longest_first(batch)
            if self._packed is not None:
                self._packed.plan(batch, step)
            elif self._micro is not None:
                self._micro.check(ids, lengths, step)
            elif self._unequal is not None:
                self._unequal.check(ids, lengths, step)
            elif reach(limits := self._limits(lengths), self.problem.workers) < len(ids):
                raise self._misfit(ids, lengths, limits, step)

    def _longest_first(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        lengths = self.problem.padded_lengths[ids]
        order = sort_longest_first(lengths)
        return ids[order], lengths[order]

    def _plan(self, ids: IntArray, step: int) -> StepPlan:
        if self._packed is not None:
            return self._packed.plan(ids, step)
        ids, lengths = self._longest_first(ids)
        if self._micro is not None and self._micro.wanted(lengths):
            shares, exact = self._micro.shares(ids, lengths, step)
            return StepPlan(step, shares, exact)
        if self._unequal is not None:
            groups, exact = self._unequal.groups(ids, lengths, step, self.problem.extra_of(ids))
            return StepPlan(step, single(groups), exact)
        counts, exact = self._equal(ids, lengths, step)
        return StepPlan(step, single(cut(ids, counts)), exact)

    def _equal(self, ids: IntArray, lengths: IntArray, step: int) -> tuple[list[int], Exactness]:
        problem = self.problem
        limits = None if problem.capacity.unlimited else self._limits(lengths)
        weights = problem.cost.per_sample(lengths)
        counts = least_maximum(weights, problem.workers, limits)
        if counts is None:
            assert limits is not None
            raise self._misfit(ids, lengths, limits, step)
        most = largest_groups(weights, counts, limits)
        if not fits_table(problem.workers, most):
            return counts, "maximum"
        return least_total(group_costs(problem.cost, lengths, most), problem.workers), "both"

    def _limits(self, lengths: IntArray) -> IntArray:
        return self.problem.capacity.limits_of(0, lengths)

    def _misfit(self, ids: IntArray, lengths: IntArray, limits: IntArray, step: int) -> NothingFits:
        if limits[0] == 0:
            return capacity.sample_too_long(step, int(ids[0]), int(lengths[0]))
        return capacity.batch_too_large(step, len(ids), reach(limits, self.problem.workers))

"""Several padded micro-batches per rank, for ranks of equal capacity and one global batch.

This contains multiprocessor scheduling, so it is a heuristic, never proven: the sorted batch is cut into M contiguous
micro-batches in a few ways, these are dealt to the ranks, dearest first to the rank that would end it first (LPT:
Graham 1969; with unequal speeds Gonzalez, Ibarra and Sahni 1977), and the best of all is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule import fits
from dynbench.schedule.longest_first import deal_longest_first, deal_to_first_finish
from dynbench.schedule.partition_search import largest_groups, least_maximum, reach, search_weights
from dynbench.schedule.partition_total import fits_table, group_costs, least_total, least_work
from dynbench.schedule.partition_unequal import UnequalRanks
from dynbench.schedule.plan import FloatArray, IntArray, Share
from dynbench.schedule.policy import Problem

EVERY_NUMBER = 64
"""Largest global batch for which `auto` weighs every number of micro-batches; above, multiples of the world size."""
WORTH = 2e-3
"""With `auto`, numbers are tried while one may be faster than the best so far by more than this part."""
ALWAYS_TRIED = 8
RECENT = 4
GAIN = 1e-2
"""Above `EVERY_NUMBER`, after the first `ALWAYS_TRIED` numbers, the search ends when the `RECENT` ones have lowered the
step by less than this part together: it runs inline, before every step."""

_Deal = tuple[float, list[int], list[list[int]]]
"""The slowest rank's cost, or time where speeds differ; the micro-batches' sizes; per rank their indices."""


class MicroBatchPlanner:
    """Shares of one or more micro-batches.

    With a fixed number N every rank runs exactly N or, where speeds differ, N on average and at least one. With `auto`
    it is the least that the capacities need, or the next multiple of the ranks; with a `measured` cost, which has a
    price for each, the number of the fastest plan: they are tried in order of a lower bound, until it ends the search
    or, for a large batch, further ones gain little.

    Args:
        problem: ranks of equal capacity; `micro_batches` is N or auto.

    Raises:
        UsageError: fewer samples than ranks times N.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._fixed = None if problem.micro_batches == "auto" else problem.micro_batches
        self._speeds = None if problem.equal_ranks else problem.relative_speeds()
        self._unequal = None if problem.equal_ranks else UnequalRanks(problem)
        ranks, batch = problem.workers, problem.global_batch
        if self._fixed is not None and batch < ranks * self._fixed:
            raise UsageError(
                f"schedule.micro_batches: {self._fixed} on each of {ranks} ranks for {batch} samples",
                f"Use at most {batch // ranks}, or a train.global_batch of at least {ranks * self._fixed}.",
            )

    def wanted(self, lengths: IntArray) -> bool:
        """False when one micro-batch per rank is what `auto` means: they fit, and no alpha weighs against padding.

        Args:
            lengths: padded, longest first, shape [B].
        """
        if self._fixed is not None or self._problem.cost.cost_type == "measured":
            return True
        return reach(self._limits(lengths), self._problem.workers) < len(lengths)

    def shares(self, ids: IntArray, lengths: IntArray, step: int) -> tuple[Share, ...]:
        """Micro-batches per rank, the longest samples' first.

        Args:
            ids: samples, longest first, shape [B].
            lengths: their padded lengths, shape [B].
            step: optimizer step, for messages.

        Raises:
            NothingFits: a sample is longer than the capacity, or N micro-batches per rank cannot hold the batch.
        """
        limits = self.check(ids, lengths, step)
        _, sizes, dealt = self._best(lengths, limits)
        ends = np.cumsum(sizes).tolist()
        return tuple(tuple(ids[ends[part] - sizes[part] : ends[part]] for part in sorted(parts)) for parts in dealt)

    def check(self, ids: IntArray, lengths: IntArray, step: int) -> IntArray:
        """Largest micro-batch that may begin at each position, shape [B]; raises what `shares` raises."""
        limits = self._limits(lengths)
        if limits[0] == 0:
            raise fits.sample_too_long(step, int(ids[0]), int(lengths[0]))
        if self._fixed is not None:
            most = reach(limits, self._problem.workers * self._fixed)
            if most < len(ids):
                raise fits.batch_too_large(step, len(ids), most)
        return limits

    def _limits(self, lengths: IntArray) -> IntArray:
        return np.minimum(self._problem.capacity.limits_of(0, lengths), len(lengths))

    def _best(self, lengths: IntArray, limits: IntArray) -> _Deal:
        ranks, size = self._problem.workers, len(lengths)
        if self._fixed is not None:
            return self._deal(ranks * self._fixed, lengths, limits)
        fewest = max(_parts_needed(limits), ranks)
        multiples = range((fewest // ranks + 1) * ranks, size + 1, ranks)
        if self._problem.cost.cost_type != "measured":
            return min((self._deal(number, lengths, limits) for number in (fewest, *multiples[:1])), key=_slowest)
        numbers = np.array([fewest, *(range(fewest + 1, size + 1) if size <= EVERY_NUMBER else multiples)])
        bounds = self._bounds(numbers, lengths, limits)
        order = np.argsort(bounds, kind="stable")
        best = self._deal(int(numbers[order[0]]), lengths, limits)
        reached = [best[0]]
        for place in order[1:]:
            if bounds[place] >= best[0] * (1 - WORTH) or (size > EVERY_NUMBER and _gains_little(reached)):
                break
            best = min(best, self._deal(int(numbers[place]), lengths, limits), key=_slowest)
            reached.append(best[0])
        return best

    def _bounds(self, numbers: IntArray, lengths: IntArray, limits: IntArray) -> FloatArray:
        """No deal of so many micro-batches has a smaller maximum, as `_deal` tells it; same shape."""
        cost = self._problem.cost
        speeds = np.ones(self._problem.workers) if self._speeds is None else self._speeds
        weights = cost.per_sample(lengths)
        work: float | FloatArray = float(weights.sum())
        if len(lengths) <= EVERY_NUMBER:  # else looking for a better bound takes longer than it saves
            work = least_work(numbers, weights, limits, price=cost.alpha + cost.surcharge)
        fixed = cost.of_rank(numbers * cost.alpha, numbers - len(speeds) + 1)
        longest = float(cost.alpha + weights[0]) / float(speeds.max())
        bounds: FloatArray = np.maximum((fixed + work) / float(speeds.sum()), longest)
        return bounds

    def _deal(self, number: int, lengths: IntArray, limits: IntArray) -> _Deal:
        """The best deal of `number` micro-batches over the ranks."""
        deals = []
        if self._unequal is not None and number == self._problem.workers:
            deals.append(self._one_each(self._unequal, lengths))
        for sizes in _cuts(number, lengths, limits, self._problem):
            starts = np.cumsum(sizes) - sizes
            surcharge = self._problem.cost.surcharge
            costs = self._problem.cost.cost_padded(sizes, lengths[starts]) + surcharge
            if self._speeds is None:
                slowest, dealt = deal_longest_first(costs, self._problem.workers, self._fixed)
                slowest -= surcharge
            else:
                slowest, dealt = deal_to_first_finish(costs, self._speeds, surcharge)
            deals.append((slowest, sizes, dealt))
        return min(deals, key=_slowest)

    def _one_each(self, unequal: UnequalRanks, lengths: IntArray) -> _Deal:
        """The exact split of one micro-batch per rank."""
        groups, _ = unequal.groups(np.arange(len(lengths)), lengths, step=0)
        starts, sizes = np.array([(group[0], len(group)) for group in groups]).T
        times = self._problem.cost.cost_padded(sizes, lengths[starts]) / self._problem.relative_speeds()
        place = np.argsort(starts)
        return float(times.max()), sizes[place].tolist(), [[part] for part in np.argsort(place).tolist()]


def _slowest(deal: _Deal) -> float:
    return deal[0]


def _gains_little(reached: Sequence[float]) -> bool:
    """Whether the last numbers tried were hardly worth it; `reached` is the least slowest rank after each."""
    return len(reached) >= ALWAYS_TRIED and reached[-1] > reached[-1 - RECENT] * (1 - GAIN)


def _parts_needed(limits: IntArray) -> int:
    """Fewest micro-batches that hold all samples."""
    parts, start, size = 0, 0, len(limits)
    while start < size:
        start += int(limits[start])
        parts += 1
    return parts


def _cuts(number: int, lengths: IntArray, limits: IntArray, problem: Problem) -> Iterator[list[int]]:
    """Sizes of `number` contiguous micro-batches: of least maximum, then of least total with and without it."""
    weights = search_weights(problem.cost, lengths)
    even = least_maximum(weights, number, limits)
    assert even is not None
    yield even
    for most in (largest_groups(weights, even, limits), np.minimum(limits, np.arange(len(limits), 0, -1))):
        if fits_table(number, most):
            yield least_total(group_costs(problem.cost, lengths, most), number)

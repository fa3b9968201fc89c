"""Several padded micro-batches per rank, for ranks of equal capacity and one global batch.

This contains multiprocessor scheduling: few samples are dealt in every way (`cheapest`), more by a heuristic that
proves nothing. The sorted batch is cut into M contiguous micro-batches in a few ways. Where ranks synchronise once a
step, these are dealt to them, dearest first to the rank that would end it first (LPT: Graham 1969; with unequal speeds
Gonzalez, Ibarra and Sahni 1977); where they do so in every micro-batch, neighbours in cost run together, and one of the
cuts is made for that (`cut_by_slots`). The best of all is `polished`. Where samples have a second cost, one micro-batch
per rank is made here too, and contiguous ones are a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dynbench.schedule.accumulation import (
    FEW_ROUNDS,
    TOO_LARGE,
    Accumulation,
    Deal,
    SortedStep,
    best_grouping,
    cheapest,
    cut_by_slots,
    deal_of,
    every_cut,
    polished,
)
from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish
from dynbench.schedule.capacity import BoolArray, batch_too_large, sample_too_long
from dynbench.schedule.partition_search import (
    TABLE_LIMIT,
    fits_table,
    group_costs,
    largest_groups,
    least_maximum,
    least_total,
    least_work,
    reach,
)
from dynbench.schedule.partition_unequal import UnequalRanks, even_sizes
from dynbench.schedule.plan import Exactness, FloatArray, IntArray, Share, cut, in_turn, stable_argsort
from dynbench.schedule.policy import Problem, check_enough_samples

EVERY_NUMBER = 64
"""Largest global batch for which `auto` weighs every number of micro-batches; above, multiples of the world size."""
WORTH = 2e-3
"""With `auto`, numbers are tried while one may be faster than the best so far by more than this part."""
ALWAYS_TRIED = 8
RECENT = 4
GAIN = 1e-2
"""Above `EVERY_NUMBER`, after the first `ALWAYS_TRIED` numbers, the search ends when the `RECENT` ones have lowered the
step by less than this part together: it runs inline, before every step."""
SPARE = 4
"""Times the mean size that the largest micro-batch of a cut of least total cost may have, at least."""


class MicroBatchPlanner:
    """Shares of one or more micro-batches.

    With a fixed number N every rank runs exactly N or, where speeds differ and ranks synchronise once a step, N on
    average and at least one. With `auto` it is the least that the capacities need, or the next multiple of the ranks;
    with a `measured` cost, which has a price for each, the number of the fastest plan: they are tried in order of a
    lower bound, until it ends the search or, for a large batch, further ones gain little. Where ranks synchronise in
    every micro-batch, all run the same number.

    Args:
        problem: ranks of equal capacity; `micro_batches` is N or auto.

    Raises:
        UsageError: fewer samples than ranks times N.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._fixed = None if problem.micro_batches == "auto" else problem.micro_batches
        self._slots = problem.objective == "slots"
        self._speeds = None if problem.equal_ranks else problem.relative_speeds()
        self._unequal = None if problem.equal_ranks else UnequalRanks(problem)
        check_enough_samples(problem)
        speeds = np.ones(problem.workers) if self._speeds is None else self._speeds
        self._meets = Accumulation(problem.objective, speeds, problem.cost.surcharge)

    def wanted(self, lengths: IntArray) -> bool:
        """False when one micro-batch per rank is what `auto` means: they fit, and no alpha weighs against padding.

        Args:
            lengths: padded, longest first, shape [B].
        """
        if self._fixed is not None or self._problem.extra is not None or self._problem.cost.cost_type == "measured":
            return True
        return reach(self._limits(lengths), self._problem.workers) < len(lengths)

    def shares(self, ids: IntArray, lengths: IntArray, step: int) -> tuple[tuple[Share, ...], Exactness]:
        """Micro-batches per rank, and what is proven: the longest samples' first, of slots the dearest.

        Args:
            ids: samples, longest first, shape [B].
            lengths: their padded lengths, shape [B].
            step: optimizer step, for messages.

        Raises:
            NothingFits: a sample is longer than the capacity, or N micro-batches per rank cannot hold the batch.
        """
        limits = self.check(ids, lengths, step)
        samples = SortedStep(self._problem.cost, lengths, limits, self._problem.extra_of(ids))
        tried = self._all_tried(samples)
        if tried is not None:
            return tuple(tuple(ids[part] for part in parts) for parts in tried), "maximum"
        deal, exact = self._dealt(samples)
        groups = cut(ids, deal.sizes)
        return tuple(tuple(groups[part] for part in parts) for parts in deal.dealt), exact

    def check(self, ids: IntArray, lengths: IntArray, step: int) -> IntArray:
        """Largest micro-batch that may begin at each position, shape [B]; raises what `shares` raises."""
        limits, ranks = self._limits(lengths), self._problem.workers
        if limits[0] == 0:
            raise sample_too_long(step, int(ids[0]), int(lengths[0]))
        if self._fixed is not None:
            most = reach(limits, ranks * self._fixed)
            if most < len(ids):
                raise batch_too_large(step, len(ids), most)
        elif self._fewest(limits) > len(ids):  # not one sample for each micro-batch of the last slot
            raise batch_too_large(step, len(ids), len(ids) // ranks * ranks, may_split=False)
        return limits

    def _limits(self, lengths: IntArray) -> IntArray:
        return np.minimum(self._problem.capacity.limits_of(0, lengths), len(lengths))

    @property
    def _each(self) -> int | None:
        """Micro-batches of every rank; None for at least one."""
        return self._fixed if self._slots or self._speeds is None else None

    def _all_tried(self, samples: SortedStep) -> list[list[IntArray]] | None:
        """The best of all micro-batches, contiguous or not, by rank; None where contiguous do or there are too many."""
        if samples.before is None or self._fixed is None:
            return None

        def price(held: BoolArray) -> FloatArray:
            counts, longest = held.sum(axis=1), held.argmax(axis=1)
            extra = np.tensordot(held, samples.extra, axes=(1, 0))
            costs = samples.cost.cost_padded(counts, samples.lengths[longest], extra)
            costs[counts > samples.limits[longest]] = TOO_LARGE
            return costs

        number = self._problem.workers * self._fixed
        found = best_grouping(len(samples.lengths), number, price, self._meets, self._each)
        return None if found is None else found[1]

    def _dealt(self, samples: SortedStep) -> tuple[Deal, Exactness]:
        """Every contiguous deal of few samples is tried; the best that is found of more is polished."""
        cuts = None if self._fixed is None else every_cut(len(samples.lengths), self._problem.workers * self._fixed)
        if cuts is not None:
            found = cheapest(samples.costs(cuts), self._meets, self._each)
            if found is not None:
                exact: Exactness = "maximum" if samples.before is None else "none"
                return deal_of(samples, self._meets, cuts[found[0]].tolist(), found[1]), exact
        number = self._problem.workers * (self._fixed or 0) or len(self._best(samples).sizes)
        deals = self._deals(number, samples, by_slot=self._slots)
        best = min(polished(samples, self._meets, deal, FEW_ROUNDS) for deal in deals)
        return polished(samples, self._meets, best), "none"

    def _fewest(self, limits: IntArray) -> int:
        """Micro-batches that there are at least; in slots, of all ranks as many."""
        ranks = self._problem.workers
        fewest = max(_parts_needed(limits), ranks)
        return -(-fewest // ranks) * ranks if self._slots else fewest

    def _best(self, samples: SortedStep) -> Deal:
        ranks, size = self._problem.workers, len(samples.lengths)
        fewest = self._fewest(samples.limits)
        multiples = range((fewest // ranks + 1) * ranks, size + 1, ranks)
        if self._problem.cost.cost_type != "measured":
            one_each = self._problem.extra is not None and fewest == ranks
            tried = (fewest,) if one_each else (fewest, *multiples[:1])
            return min(self._deal(number, samples) for number in tried)
        every = size <= EVERY_NUMBER and not self._slots
        numbers = np.array([fewest, *(range(fewest + 1, size + 1) if every else multiples)])
        bounds = self._bounds(numbers, samples)
        order = stable_argsort(bounds)
        best = self._deal(int(numbers[order[0]]), samples)
        reached = [best.lasts]
        for place in order[1:]:
            if bounds[place] >= best.lasts * (1 - WORTH) or (size > EVERY_NUMBER and _gains_little(reached)):
                break
            best = min(best, self._deal(int(numbers[place]), samples))
            reached.append(best.lasts)
        return best

    def _bounds(self, numbers: IntArray, samples: SortedStep) -> FloatArray:
        """No deal of so many micro-batches has a smaller maximum, as `_deal` tells it; same shape."""
        cost, speeds, weights = self._problem.cost, self._meets.speeds, samples.weights
        work: float | FloatArray = float(weights.sum())
        if len(weights) <= EVERY_NUMBER:  # else looking for a better bound takes longer than it saves
            work = least_work(numbers, weights, samples.limits, price=cost.alpha + cost.surcharge)
        if samples.before is not None:
            work += float(samples.before[-1])
            weights = weights + np.diff(samples.before)
        fixed = cost.of_rank(numbers * cost.alpha, numbers - len(speeds) + 1)
        longest = float(cost.alpha + weights.max()) / float(speeds.max())
        bounds: FloatArray = np.maximum((fixed + work) / float(speeds.sum()), longest)
        return bounds

    def _deal(self, number: int, samples: SortedStep) -> Deal:
        """The best deal of `number` micro-batches over the ranks, as far as it takes to choose the number."""
        by_slot = self._slots and self._unequal is not None  # else neighbours in cost tell nearly as much
        return min(self._deals(number, samples, by_slot=by_slot))

    def _deals(self, number: int, samples: SortedStep, *, by_slot: bool) -> list[Deal]:
        """A deal of each cut into `number` micro-batches; `by_slot` also of the one that is made for slots."""
        deals = []
        if self._unequal is not None and number == self._problem.workers:
            deals.append(self._one_each(self._unequal, samples))
        run = self._in_slots if self._slots else self._in_turn
        deals += [run(samples, sizes) for sizes in _cuts(number, samples)]
        if by_slot:
            even = min(float(samples.costs(np.array(deal.sizes)).max()) for deal in deals)
            cut, dealt = cut_by_slots(samples, self._meets, number // self._problem.workers, even)
            deals.append(deal_of(samples, self._meets, cut, dealt))
        return deals

    def _in_turn(self, samples: SortedStep, sizes: list[int]) -> Deal:
        """Micro-batches dealt by longest first."""
        costs = samples.costs(np.array(sizes)) + self._meets.surcharge
        if self._speeds is None:
            dealt = deal_longest_first(costs, self._problem.workers, self._fixed)
        else:
            dealt = deal_to_first_finish(costs, self._speeds, self._meets.surcharge)
        return deal_of(samples, self._meets, sizes, [sorted(parts) for parts in dealt])

    def _in_slots(self, samples: SortedStep, sizes: list[int]) -> Deal:
        """Micro-batches of which those that follow each other run together, the dearest on the fastest rank."""
        ranks = self._problem.workers
        dearest = stable_argsort(-samples.costs(np.array(sizes)))
        slots = in_turn(dearest, ranks)[np.argsort(stable_argsort(-self._meets.speeds))]
        return deal_of(samples, self._meets, sizes, slots.tolist())

    def _one_each(self, unequal: UnequalRanks, samples: SortedStep) -> Deal:
        """The best contiguous split of one micro-batch per rank."""
        groups, _ = unequal.groups(np.arange(len(samples.lengths)), samples.lengths, step=0, extra=samples.extra)
        starts, sizes = np.array([(group[0], len(group)) for group in groups]).T
        place = np.argsort(starts)
        return deal_of(samples, self._meets, sizes[place].tolist(), [[part] for part in np.argsort(place).tolist()])


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


def _cuts(number: int, samples: SortedStep) -> Iterator[list[int]]:
    """Sizes of `number` contiguous micro-batches: of least maximum, then of least total with and without it."""
    cost, lengths, limits, extra = samples.cost, samples.lengths, samples.limits, samples.extra
    if isinstance(extra, float):
        found = least_maximum(samples.weights, number, limits)
        assert found is not None
        even, as_even = found, largest_groups(samples.weights, found, limits)
    else:
        even = even_sizes(cost, lengths, number, limits, extra)
        as_even = samples.within(samples.costs(np.array(even)).max(keepdims=True))[0]
    yield even
    most_of_all = np.minimum(limits, np.arange(len(limits), 0, -1))
    affordable = TABLE_LIMIT // (number * len(limits))
    if affordable * number >= SPARE * len(limits):
        most_of_all = np.minimum(most_of_all, affordable)
    for most in (as_even, most_of_all):
        if fits_table(number, most) and reach(most, number) == len(limits):
            yield least_total(group_costs(cost, lengths, most), number)

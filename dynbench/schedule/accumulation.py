"""Several micro-batches per rank: what a step lasts by its objective, exhaustive search of small steps, local search.

Under `sum` ranks synchronise once, at its end: the step lasts as long as its slowest rank's micro-batches together.
Under `slots` they do so in every micro-batch, as FSDP's gathers make them: the k-th micro-batches of all ranks are a
slot, which lasts as long as the slowest, and the step is the sum of its slots.

Every slot takes samples that follow each other in sorted length, the first slot the longest. Given how long it may
last, its ranks take as many samples as they can, one after the other. So the samples left after it follow from those
before it and its duration, and a programme over the samples left chooses the durations, of a few that are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, permutations, product
from math import comb
from typing import NamedTuple

import numpy as np

from dynbench.plugins.strategies import Objective
from dynbench.schedule.capacity import BoolArray
from dynbench.schedule.cost import CostModel
from dynbench.schedule.partition_search import most_within, whole_quotients
from dynbench.schedule.plan import FloatArray, IntArray, floats, in_turn, integers, owners_of, stable_argsort

TOO_LARGE = 1e300
"""Cost of a micro-batch above its capacity; sums of many stay finite."""
_ROUNDING = 1e-12

Dealt = list[list[int]]
"""Per rank the numbers of its micro-batches, in the order in which they run."""

ROUNDS = 8
"""Samples that change their micro-batch, at most."""
FEW_ROUNDS = 3
"""The same of each of several deals, of which the best is polished further."""
PRICED = 2**15
"""Micro-batches priced in a round, at most: changes times micro-batches."""
SWAPS = 32
"""Exchanges of micro-batches between ranks before a sample changes its micro-batch, at most."""


@dataclass(frozen=True)
class Accumulation:
    """How the micro-batches of a step add up.

    Args:
        objective: sum or slots; under slots all ranks run the same number.
        speeds: relative speed per rank, shape [G].
        surcharge: what every micro-batch of a rank after its first costs besides.
    """

    objective: Objective
    speeds: FloatArray
    surcharge: float = 0.0

    @property
    def ranks(self) -> int:
        """Their number (G)."""
        return len(self.speeds)

    @property
    def alike(self) -> bool:
        """Whether all ranks have one speed."""
        return bool(np.ptp(self.speeds) == 0)

    def lasts(self, costs: FloatArray, dealt: Dealt) -> FloatArray:
        """Time of steps dealt alike, from the costs of their micro-batches, shape [K, M]; shape [K].

        Of slots of ranks that are alike it is the least time, in which micro-batches that are neighbours in cost run
        together, whatever `dealt` says.
        """
        order, numbers = np.concatenate(dealt), np.array([len(own) for own in dealt])
        if self.objective == "sum":
            totals = np.add.reduceat(costs[:, order], np.cumsum(numbers) - numbers, axis=1)
        elif self.alike:
            totals = np.sort(costs, axis=1)[:, self.ranks - 1 :: self.ranks].sum(axis=1, keepdims=True)
        else:
            paid = costs[:, np.array(dealt).T]
            paid[:, 1:] += self.surcharge
            slots: FloatArray = (paid / self.speeds).max(axis=2).sum(axis=1)
            return slots
        slowest: FloatArray = ((totals + (numbers - 1) * self.surcharge) / self.speeds).max(axis=1)
        return slowest

    def arranged(self, costs: FloatArray, dealt: Dealt) -> Dealt:
        """The deal, in slots of ranks that are alike with neighbours in cost together, the dearest first."""
        if self.objective == "sum" or not self.alike:
            return dealt
        slots: list[list[int]] = in_turn(stable_argsort(-costs), self.ranks).tolist()
        return slots

    def critical(self, costs: FloatArray, dealt: Dealt) -> IntArray:
        """Numbers of the micro-batches that the step waits for."""
        if self.objective == "sum":
            totals = [costs[own].sum() + (len(own) - 1) * self.surcharge for own in dealt]
            return np.array(dealt[int(np.argmax(np.array(totals) / self.speeds))])
        grid = np.array(dealt)
        paid = costs[grid]
        paid[:, 1:] += self.surcharge
        slowest: IntArray = grid[(paid / self.speeds[:, None]).argmax(axis=0), np.arange(grid.shape[1])]
        return slowest


@dataclass(frozen=True)
class SortedStep:
    """The padded samples of a step, longest first, of which contiguous micro-batches are made.

    Contiguous is enough for both objectives: the exchange argument of `partition_search` changes no micro-batch's
    count, rank or slot. It is not where samples cost something besides (`before`), which is exchanged too.

    Args:
        cost: predicted cost of a micro-batch.
        lengths: padded, falling, shape [B], tokens.
        limits: largest micro-batch that may begin at each place, non-decreasing, shape [B].
        extra: what the samples cost besides, shape [B], tokens; 0 for nothing.
    """

    cost: CostModel
    lengths: IntArray
    limits: IntArray
    extra: FloatArray | float = 0.0

    @cached_property
    def weights(self) -> FloatArray:
        """What one more sample costs by the longest of its micro-batch, falling, shape [B]."""
        return self.cost.per_sample(self.lengths)

    @cached_property
    def before(self) -> FloatArray | None:
        """What all samples before each place cost besides, as `weights`, shape [B + 1]; None for nothing."""
        return self.cost.per_sample(0.0, np.cumsum(np.append(0.0, self.extra))) if np.any(self.extra) else None

    def costs(self, counts: IntArray) -> FloatArray:
        """Costs of micro-batches of so many samples, from the longest on; same shape, [M] or [K, M]."""
        starts = np.cumsum(counts, axis=-1) - counts
        work: FloatArray = counts * self.weights[starts]
        if self.before is not None:
            work += self.before[starts + counts] - self.before[starts]
        costs = self.cost.of_work(work)
        costs[counts > self.limits[starts]] = TOO_LARGE
        return costs

    def within(self, costs: FloatArray) -> IntArray:
        """Largest micro-batch from each place on that costs no more, shape [K, B]; 0 where a single sample does."""
        budgets = self.cost.work_within(costs)
        if self.before is not None:
            return most_within(budgets[:, None], self.weights, self.limits, self.before, _ROUNDING)
        return whole_quotients(budgets[:, None] * (1 + _ROUNDING), self.weights, self.limits)


class Deal(NamedTuple):
    """A step's micro-batches, contiguous in the sorted samples; the lesser of two is the better."""

    lasts: float
    """The step's time."""
    total: float
    """Summed cost of its micro-batches."""
    sizes: list[int]
    """Samples of each micro-batch, the longest samples' first, shape [M]."""
    dealt: Dealt
    """Those of each rank."""


def deal_of(samples: SortedStep, meets: Accumulation, sizes: list[int], dealt: Dealt) -> Deal:
    """The deal of micro-batches of these sizes; in slots of ranks that are alike, who runs which is dealt anew."""
    costs = samples.costs(np.array(sizes))
    dealt = meets.arranged(costs, dealt)
    return Deal(float(meets.lasts(costs[None], dealt)[0]), float(costs.sum()), sizes, dealt)


def polished(samples: SortedStep, meets: Accumulation, deal: Deal, rounds: int = ROUNDS) -> Deal:
    """A deal no slower: single samples pass between micro-batches, those between these being moved along.

    Many such changes are priced at once, and the best is made; of those that are as good, the one of least total cost.
    Ranks that synchronise once a step exchange whole micro-batches, too.
    """
    deal = _swapped(samples, meets, deal)
    for _ in range(rounds):
        costs = samples.costs(np.array(deal.sizes))
        tried = _changes(deal.sizes, meets.critical(costs, deal.dealt))
        if not len(tried):
            break
        changed = samples.costs(tried)
        lasts, totals = meets.lasts(changed, deal.dealt), changed.sum(axis=1)
        good = np.flatnonzero(lasts <= lasts.min() * (1 + _ROUNDING))
        best = int(good[totals[good].argmin()])
        shorter = lasts[best] < deal.lasts * (1 - _ROUNDING)
        if not shorter and (lasts[best] > deal.lasts or totals[best] >= deal.total * (1 - _ROUNDING)):
            break
        deal = _swapped(samples, meets, deal_of(samples, meets, tried[best].tolist(), deal.dealt))
    return deal


def _changes(sizes: list[int], critical: IntArray) -> IntArray:
    """Sizes after a sample left one micro-batch for another, shape [K, M]; none becomes empty.

    All changes where there are few; else those of micro-batches that the step waits for and others near them.
    """
    counts, number = np.array(sizes), len(sizes)
    most = PRICED // number
    giving = np.arange(number) if number * number <= most else np.sort(critical)
    giving = giving[counts[giving] > 1]
    reach = min(number - 1, max(most // (2 * max(len(giving), 1)), 1))
    away = np.concatenate((np.arange(-reach, 0), np.arange(1, reach + 1)))
    first, second = np.repeat(giving, len(away)), np.add.outer(giving, away).ravel()
    inside = (second >= 0) & (second < number)
    first, second = first[inside], second[inside]
    tried = np.tile(counts, (len(first), 1))
    each = np.arange(len(first))
    tried[each, first] -= 1
    tried[each, second] += 1
    return tried


def _swapped(samples: SortedStep, meets: Accumulation, deal: Deal) -> Deal:
    """The deal after exchanges of whole micro-batches between the slowest rank and others, where `sum` is asked for."""
    of_one_each = meets.alike and len(deal.sizes) == meets.ranks
    if meets.objective == "slots" or meets.ranks == 1 or of_one_each:
        return deal
    costs, owners = samples.costs(np.array(deal.sizes)), owners_of(deal.dealt)
    spent = np.bincount(owners, costs) + (np.bincount(owners) - 1) * meets.surcharge
    for _ in range(SWAPS):
        times = spent / meets.speeds
        slow = int(times.argmax())
        mine, theirs = np.flatnonzero(owners == slow), np.flatnonzero(owners != slow)
        others = owners[theirs]
        given = costs[mine][:, None] - costs[theirs]
        after = np.maximum((spent[slow] - given) / meets.speeds[slow], (spent[others] + given) / meets.speeds[others])
        first, second = divmod(int(after.argmin()), len(theirs))
        if after[first, second] >= times[slow] * (1 - _ROUNDING):
            break
        spent[slow] -= given[first, second]
        spent[others[second]] += given[first, second]
        owners[mine[first]], owners[theirs[second]] = others[second], slow
    dealt = [np.flatnonzero(owners == rank).tolist() for rank in range(meets.ranks)]
    return deal._replace(lasts=float((spent / meets.speeds).max()), dealt=dealt)


DURATIONS = 128
"""Durations tried, at most; `LEAST_DURATIONS` at least, where they times samples would be more than `CELLS`."""
LEAST_DURATIONS = 32
CELLS = 2**14
PLACES = 32
"""Places of the sorted batch whose multiples are durations that may be tried."""
STRETCH = 1.3
"""Longest duration that is tried over that of slots that last alike."""
CUTS = 2**12
"""Cuts times micro-batches up to which all cuts of a sorted batch are tried."""
ROWS = 8
"""Samples up to which all ways to put them into packed rows are tried."""
OWNERS = 2**12
"""Ways to give micro-batches to ranks, at most, before those that are alike are left out."""
PERMUTED = 8
"""Micro-batches, at most, that are dealt to slots of unequal ranks in every order."""
PRICED_SPLITS = 2**20
"""Costs of micro-batches looked at, at most."""


def cut_by_slots(samples: SortedStep, meets: Accumulation, slots: int, even: float) -> tuple[list[int], Dealt]:
    """Sizes of slots times ranks micro-batches, the longest samples' first, and those of each rank, slot by slot.

    Args:
        samples: at least one per micro-batch, which the limits allow.
        meets: how long the slots last.
        slots: micro-batches of every rank (n).
        even: cost within which so many micro-batches hold all samples.
    """
    size, ranks = len(samples.weights), meets.ranks
    durations = _durations(samples, size // (slots * ranks), even) / meets.speeds.min()
    falling = stable_argsort(-meets.speeds).tolist()
    orders = [falling] if meets.alike else [falling, falling[::-1]]
    holds = {speed: samples.within(durations * speed) for speed in set(meets.speeds.tolist())}
    reached = np.concatenate([_reached(holds, meets.speeds[order].tolist()) for order in orders])
    chosen = _choose(reached, np.tile(durations, len(orders)), slots, ranks)
    sizes: list[int] = []
    dealt: Dealt = [[] for _ in range(ranks)]
    start = 0
    for after in reversed(range(slots)):
        order, duration = divmod(int(chosen[after][start]), len(durations))
        for used, rank in enumerate(orders[order], 1):
            most = int(holds[float(meets.speeds[rank])][duration, start])
            dealt[rank].append(len(sizes))
            # What is left for later ones may leave a slow rank a longer sample than its duration holds.
            sizes.append(max(1, min(most, size - start - (ranks - used) - after * ranks)))
            start += sizes[-1]
    return sizes, dealt


def _durations(samples: SortedStep, mean: int, even: float) -> FloatArray:
    """Costs that a slot's dearest micro-batch may have, rising; the last is enough for any slot. Shape [K]."""
    size = len(samples.weights)
    places = _evenly(size, PLACES)
    counts = np.arange(1, min(size, 8 * mean) + 1)
    work = np.multiply.outer(counts, samples.weights[places]).ravel()
    costs = samples.cost.of_work(work)
    costs = np.unique(costs[costs <= STRETCH * even])
    most = min(DURATIONS, max(CELLS // size, LEAST_DURATIONS))
    return np.append(costs[_evenly(len(costs), most)], STRETCH * even)


def _evenly(size: int, most: int) -> IntArray:
    """Some positions in so many entries, the first and the last among them."""
    return integers(np.linspace(0, size - 1, min(size, most)))


def _reached(holds: dict[float, IntArray], speeds: list[float]) -> IntArray:
    """The place behind a slot that begins at each place, by its duration, shape [K, B + 2].

    B is the end of the samples, and B + 1 stands for where a rank can take no sample.

    Args:
        holds: by speed, the most that a rank takes from each place on, shape [K, B].
        speeds: of the ranks, in the order in which they take their micro-batches.
    """
    reached: IntArray | None = None
    for speed in dict.fromkeys(speeds):
        within = holds[speed]
        size = within.shape[1]
        step = np.minimum(np.arange(size) + within, size)
        step[within == 0] = size + 1
        step = np.append(step, np.tile([size, size + 1], (len(step), 1)), axis=1)
        times = speeds.count(speed)
        while times:
            if times & 1:
                reached = step if reached is None else np.take_along_axis(step, reached, axis=1)
            times >>= 1
            if times:
                step = np.take_along_axis(step, step, axis=1)
    assert reached is not None
    return reached


def _choose(reached: IntArray, durations: FloatArray, slots: int, ranks: int) -> list[IntArray]:
    """For each slot, the last first, the duration's number by the place where it begins, shape [B + 2].

    As many samples as later micro-batches need are left for these.
    """
    width = reached.shape[1]
    lasts = np.full(width, np.inf)
    lasts[width - 2] = 0.0
    chosen, every = [], np.arange(width)
    for after in range(slots):
        ends = np.where(reached == width - 1, reached, np.minimum(reached, width - 2 - after * ranks))
        totals = lasts[ends] + durations[:, None]
        choice = totals.argmin(axis=0)
        lasts = totals[choice, every]
        chosen.append(choice)
    return chosen


@cache
def every_cut(size: int, number: int) -> IntArray | None:
    """Sizes of all splits of sorted samples into so many contiguous micro-batches, shape [C, M]; None for too many."""
    if comb(size - 1, number - 1) * number > CUTS:
        return None
    ends = integers(list(combinations(range(1, size), number - 1)))
    return np.diff(ends, axis=1, prepend=0, append=size)


@cache
def every_grouping(size: int, number: int) -> IntArray | None:
    """The row of each sample in all ways to fill so many rows, none empty, shape [P, B]; None for too many samples."""
    if size > ROWS:
        return None
    found = [[0]]
    for place in range(1, size):
        still = size - place - 1
        found = [
            [*rows, row]
            for rows in found
            for row in range(min(max(rows) + 2, number))
            if max(*rows, row) + 1 + still >= number
        ]
    return integers(found)


def best_grouping(
    size: int, number: int, price: Callable[[BoolArray], FloatArray], meets: Accumulation, each: int | None
) -> tuple[float, list[list[IntArray]]] | None:
    """The best of all ways to put samples into so many micro-batches; None where too much is to be tried.

    Args:
        size: samples (B).
        number: micro-batches, none empty (M).
        price: their costs in many ways, shape [P, M], from which sample is in which, shape [P, B, M].
        meets: how they add up.
        each: as `cheapest`.

    Returns:
        The dearest micro-batch's cost, and the places of the samples of each, by rank.
    """
    ways = every_grouping(size, number)
    if ways is None:
        return None
    costs = price(ways[:, :, None] == np.arange(number))
    found = cheapest(costs, meets, each)
    if found is None:
        return None
    way, dealt = found
    rows = [[np.flatnonzero(ways[way] == row) for row in own] for own in dealt]
    return float(costs[way].max()), rows


def cheapest(costs: FloatArray, meets: Accumulation, each: int | None) -> tuple[int, Dealt] | None:
    """Which of some splits makes the shortest step, and its micro-batches by rank; None where too much is to be tried.

    Args:
        costs: of the micro-batches of each split, shape [K, M].
        meets: how they add up.
        each: micro-batches of every rank; None for at least one.
    """
    number = costs.shape[1]
    if meets.objective == "slots" and meets.alike:
        anyhow = in_turn(np.arange(number), meets.ranks).tolist()
        split = int(meets.lasts(costs, anyhow).argmin())
        return split, meets.arranged(costs[split], anyhow)
    if meets.objective == "slots":
        grids = _grids(number, meets.ranks) if number <= PERMUTED else None
        if grids is None or costs.size * len(grids) > PRICED_SPLITS:
            return None
        # One slot comes first and pays no surcharge: the one that gains most by it.
        paid = costs[:, grids]
        first, further = (((paid + more) / meets.speeds).max(axis=3) for more in (0.0, meets.surcharge))
        lasts = further.sum(axis=2) + (first - further).min(axis=2)
        split, way = (int(place) for place in np.unravel_index(lasts.argmin(), lasts.shape))
        order = stable_argsort(first[split, way] - further[split, way])
        return split, grids[way][order].T.tolist()
    owners = _owners(number, meets.ranks, each, meets.alike) if meets.ranks**number <= OWNERS else None
    if owners is None or costs.size * len(owners) > PRICED_SPLITS:
        return None
    owned = floats(owners[:, :, None] == np.arange(meets.ranks))
    totals = np.tensordot(costs, owned, axes=(1, 1)) + (owned.sum(axis=1) - 1) * meets.surcharge
    lasts = (totals / meets.speeds).max(axis=2)
    split, way = (int(place) for place in np.unravel_index(lasts.argmin(), lasts.shape))
    return split, [np.flatnonzero(owners[way] == rank).tolist() for rank in range(meets.ranks)]


@cache
def _owners(number: int, ranks: int, each: int | None, alike: bool) -> IntArray:
    """The rank of each micro-batch in all ways to deal them, shape [A, M]; of ways that differ by equal ranks one."""
    found = integers(list(product(range(ranks), repeat=number)))
    counts = (found[:, :, None] == np.arange(ranks)).sum(axis=1)
    kept = np.all(counts == each, axis=1) if each is not None else np.all(counts > 0, axis=1)
    if alike:
        before = np.maximum.accumulate(np.append(np.full((len(found), 1), -1), found[:, :-1], axis=1), axis=1)
        kept &= np.all(found <= before + 1, axis=1)
    return found[kept]


@cache
def _grids(number: int, ranks: int) -> IntArray:
    """Which micro-batch each rank runs in each slot, whatever the order of the slots, in all ways; shape [A, n, G]."""
    found = integers(list(permutations(range(number)))).reshape(-1, number // ranks, ranks)
    return found[np.all(np.diff(found[:, :, 0], axis=1) > 0, axis=1)]

"""Several micro-batches per rank: slots for ranks that meet in each, and exhaustive search of small steps.

Every slot takes samples that follow each other in sorted length, the first slot the longest. Given how long it may
last, its ranks take as many samples as they can, one after the other. So the samples left after it follow from those
before it and its duration, and a programme over the samples left chooses the durations, of a few that are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, permutations, product
from math import comb

import numpy as np

from dynbench.schedule.accumulation import Accumulation, Dealt, SortedStep
from dynbench.schedule.capacity import BoolArray
from dynbench.schedule.plan import FloatArray, IntArray

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
PRICED = 2**20
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
    falling = np.argsort(-meets.speeds, kind="stable").tolist()
    orders = [falling] if meets.alike else [falling, falling[::-1]]
    holds = {speed: samples.within(durations * speed) for speed in set(meets.speeds.tolist())}
    reached = np.concatenate([_reached(holds, meets.speeds[order].tolist()) for order in orders])
    chosen = _choose(reached, np.tile(durations, len(orders)), slots, ranks)
    sizes: list[int] = []
    dealt: Dealt = [[] for _ in range(ranks)]
    start = 0
    for after, choice in zip(range(slots - 1, -1, -1), reversed(chosen), strict=True):
        order, duration = divmod(int(choice[start]), len(durations))
        for left, rank in zip(range(ranks - 1, -1, -1), orders[order], strict=True):
            most = int(holds[float(meets.speeds[rank])][duration, start])
            dealt[rank].append(len(sizes))
            sizes.append(min(most, size - start - left - after * ranks))
            start += sizes[-1]
    return sizes, dealt


def _durations(samples: SortedStep, mean: int, even: float) -> FloatArray:
    """Costs that a slot's dearest micro-batch may have, rising; the last is enough for any slot. Shape [K]."""
    size = len(samples.weights)
    places = np.linspace(0, size - 1, min(size, PLACES)).astype(np.int64)
    counts = np.arange(1, min(size, 8 * mean) + 1)
    besides = 0.0 if samples.before is None else samples.before[-1] / size
    work = np.multiply.outer(counts, samples.weights[places] + besides).ravel()
    costs = work * work if samples.cost.cost_type == "tokens_sq" else work
    if samples.cost.cost_type == "measured":
        costs = work + samples.cost.alpha
    costs = np.unique(costs[costs <= STRETCH * even])
    most = min(DURATIONS, max(CELLS // size, LEAST_DURATIONS))
    tried = costs[np.linspace(0, len(costs) - 1, min(most, len(costs))).astype(np.int64)]
    return np.append(tried, STRETCH * even)


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
    ends = np.array(list(combinations(range(1, size), number - 1)), dtype=np.int64)
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
    return np.array(found, dtype=np.int64)


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
        anyhow = np.arange(number).reshape(-1, meets.ranks).T.tolist()
        split = int(meets.lasts(costs, anyhow).argmin())
        return split, meets.arranged(costs[split], anyhow)
    if meets.objective == "slots":
        grids = _grids(number, meets.ranks) if number <= PERMUTED else None
        if grids is None or costs.size * len(grids) > PRICED:
            return None
        # One slot comes first and pays no surcharge: the one that gains most by it.
        paid = costs[:, grids]
        first, further = (((paid + more) / meets.speeds).max(axis=3) for more in (0.0, meets.surcharge))
        lasts = further.sum(axis=2) + (first - further).min(axis=2)
        split, way = (int(place) for place in np.unravel_index(lasts.argmin(), lasts.shape))
        order = np.argsort(first[split, way] - further[split, way], kind="stable")
        return split, grids[way][order].T.tolist()
    owners = _owners(number, meets.ranks, each, meets.alike) if meets.ranks**number <= OWNERS else None
    if owners is None or costs.size * len(owners) > PRICED:
        return None
    owned = (owners[:, :, None] == np.arange(meets.ranks)).astype(np.float64)
    totals = np.tensordot(costs, owned, axes=(1, 1)) + (owned.sum(axis=1) - 1) * meets.surcharge
    lasts = (totals / meets.speeds).max(axis=2)
    split, way = (int(place) for place in np.unravel_index(lasts.argmin(), lasts.shape))
    return split, [np.flatnonzero(owners[way] == rank).tolist() for rank in range(meets.ranks)]


@cache
def _owners(number: int, ranks: int, each: int | None, alike: bool) -> IntArray:
    """The rank of each micro-batch in all ways to deal them, shape [A, M]; of ways that differ by equal ranks one."""
    found = np.array(list(product(range(ranks), repeat=number)), dtype=np.int64)
    counts = (found[:, :, None] == np.arange(ranks)).sum(axis=1)
    kept = np.all(counts == each, axis=1) if each is not None else np.all(counts > 0, axis=1)
    if alike:
        before = np.maximum.accumulate(np.append(np.full((len(found), 1), -1), found[:, :-1], axis=1), axis=1)
        kept &= np.all(found <= before + 1, axis=1)
    return found[kept]


@cache
def _grids(number: int, ranks: int) -> IntArray:
    """Which micro-batch each rank runs in each slot, whatever the order of the slots, in all ways; shape [A, n, G]."""
    found = np.array(list(permutations(range(number))), dtype=np.int64).reshape(-1, number // ranks, ranks)
    return found[np.all(np.diff(found[:, :, 0], axis=1) > 0, axis=1)]

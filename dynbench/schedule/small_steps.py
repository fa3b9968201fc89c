"""Steps of so few samples that all plans of several micro-batches per rank are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, permutations, product
from math import comb

import numpy as np

from dynbench.schedule.accumulation import Accumulation, Dealt
from dynbench.schedule.capacity import BoolArray
from dynbench.schedule.plan import FloatArray, IntArray

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

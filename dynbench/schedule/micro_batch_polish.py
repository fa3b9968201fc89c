"""Small changes of a step's micro-batches, as long as one makes the step shorter (local search)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbench.schedule.accumulation import Accumulation, Dealt, SortedStep
from dynbench.schedule.plan import IntArray

ROUNDS = 8
"""Samples that change their micro-batch, at most."""
FEW_ROUNDS = 3
"""The same of each of several deals, of which the best is polished further."""
PRICED = 2**15
"""Micro-batches priced in a round, at most: changes times micro-batches."""
SWAPS = 32
"""Exchanges of micro-batches between ranks before a sample changes its micro-batch, at most."""
_ROUNDING = 1e-12


class Deal(NamedTuple):
    """A step's micro-batches, contiguous in the sorted samples."""

    lasts: float
    """The step's time."""
    sizes: list[int]
    """Samples of each micro-batch, the longest samples' first, shape [M]."""
    dealt: Dealt
    """Those of each rank."""


def deal_of(samples: SortedStep, meets: Accumulation, sizes: list[int], dealt: Dealt) -> Deal:
    """The deal of micro-batches of these sizes; in slots of ranks that are alike, who runs which is dealt anew."""
    costs = samples.costs(np.array(sizes))
    dealt = meets.arranged(costs, dealt)
    return Deal(float(meets.lasts(costs[None], dealt)[0]), sizes, dealt)


def polished(samples: SortedStep, meets: Accumulation, deal: Deal, rounds: int = ROUNDS) -> Deal:
    """A deal no slower: single samples pass between micro-batches, those between these being moved along.

    Many such changes are priced at once, and the best is made; of those that are as good, the one of least total cost.
    Ranks that meet once a step exchange whole micro-batches, too.
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
        if not shorter and (lasts[best] > deal.lasts or totals[best] >= costs.sum() * (1 - _ROUNDING)):
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
    """The deal after exchanges of whole micro-batches between the slowest rank and others, where they meet once."""
    if meets.objective == "slots" or meets.ranks == 1:
        return deal
    costs, owners = samples.costs(np.array(deal.sizes)), np.empty(len(deal.sizes), dtype=np.int64)
    for rank, own in enumerate(deal.dealt):
        owners[own] = rank
    further = np.bincount(owners, minlength=meets.ranks) - 1
    spent = np.bincount(owners, costs, meets.ranks) + further * meets.surcharge
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
    return Deal(float((spent / meets.speeds).max()), deal.sizes, dealt)

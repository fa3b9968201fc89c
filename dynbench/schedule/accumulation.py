"""Several micro-batches per step: what a step lasts by its objective, and local changes that make it shorter.

Under `sum` ranks meet once, at its end: the step lasts as long as its slowest rank's micro-batches together. Under
`slots` they meet in every micro-batch, as FSDP's gathers make them: the k-th micro-batches of all ranks are a slot,
which lasts as long as the slowest, and the step is the sum of its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dynbench.plugins.strategies import Objective
from dynbench.schedule.cost import CostModel
from dynbench.schedule.partition_search import most_within
from dynbench.schedule.plan import FloatArray, IntArray

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
            times = (totals + (numbers - 1) * self.surcharge) / self.speeds
        elif self.alike:
            dearest = np.sort(costs, axis=1)[:, self.ranks - 1 :: self.ranks].sum(axis=1, keepdims=True)
            times = (dearest + (numbers[0] - 1) * self.surcharge) / self.speeds[0]
        else:
            paid = costs[:, order.reshape(self.ranks, -1).T]
            paid[:, 1:] += self.surcharge
            times = (paid / self.speeds).max(axis=2).sum(axis=1, keepdims=True)
        slowest: FloatArray = times.max(axis=1)
        return slowest

    def arranged(self, costs: FloatArray, dealt: Dealt) -> Dealt:
        """The deal, in slots of ranks that are alike with neighbours in cost together, the dearest first."""
        if self.objective == "sum" or not self.alike:
            return dealt
        slots: list[list[int]] = np.argsort(-costs, kind="stable").reshape(-1, self.ranks).T.tolist()
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
        if self.cost.cost_type == "tokens_sq":
            work *= work
        elif self.cost.cost_type == "measured":
            work += self.cost.alpha
        work[counts > self.limits[starts]] = TOO_LARGE
        return work

    def within(self, costs: FloatArray) -> IntArray:
        """Largest micro-batch from each place on that costs no more, shape [K, B]; 0 where a single sample does."""
        budgets = costs
        if self.cost.cost_type == "tokens_sq":
            budgets = np.sqrt(costs)
        elif self.cost.cost_type == "measured":
            budgets = costs - self.cost.alpha
        if self.before is not None:
            return most_within(budgets[:, None], self.weights, self.limits, self.before, _ROUNDING)
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.floor(budgets[:, None] * (1 + _ROUNDING) / self.weights)
        counts[np.isnan(counts)] = np.inf  # neither budget nor weight
        within: IntArray = np.clip(counts, 0, self.limits).astype(np.int64)
        return within


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
    of_one_each = meets.alike and len(deal.sizes) == meets.ranks
    if meets.objective == "slots" or meets.ranks == 1 or of_one_each:
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

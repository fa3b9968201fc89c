"""What a step of several micro-batches per rank lasts, by when its ranks meet.

Under `sum` they meet once, at its end: the step lasts as long as its slowest rank's micro-batches together. Under
`slots` they meet in every micro-batch, as FSDP's gathers make them: the k-th micro-batches of all ranks are a slot,
which lasts as long as the slowest, and the step is the sum of its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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

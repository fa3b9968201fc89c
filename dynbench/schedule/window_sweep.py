"""One sweep over a window's samples, longest first: an order of the steps and a threshold per step become a plan.

In some best plan every share is contiguous in sorted length (the exchange argument of `partition_search`, which keeps
every share's step and count). So a plan is the order in which the steps take their shares, and the counts. Given a
threshold for a step, all its shares but the last take as many samples as cost at most that much: what is taken early
makes every later share shorter. The last share takes what is left of the step's B samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import IntArray

WORK_RESOLUTION = 2**20
"""Units of work in the largest sample, for costs that are no whole numbers."""


class Deal(NamedTuple):
    """A plan of a window; its shares stand in order of falling length."""

    order: list[int]
    """Step of each share, shape [W*G]."""
    thresholds: list[int]
    """Most that a share of each step may cost, its last share excepted, shape [W], work."""
    counts: list[int]
    """Samples of each share, shape [W*G]."""
    heads: list[int]
    """Dearest share of each step, its last share excepted, shape [W], work."""
    lasts: list[int]
    """Cost of each step's last share, shape [W], work."""
    excess: int
    """Samples above the capacities, summed over the shares."""


@dataclass(frozen=True)
class SortedWindow:
    """The samples of W global batches, longest first, and what they cost in whole units of work.

    Args:
        lengths: tokens before padding, falling, shape [W*B].
        steps: global batches in the window (W).
        workers: ranks that train, all alike (G).
        cost: predicted cost of a micro-batch.
        limits: largest share that may begin at each sample, non-decreasing, shape [W*B]; None for no limit.
    """

    lengths: IntArray
    steps: int
    workers: int
    cost: CostModel
    limits: list[int] | None = None

    @property
    def global_batch(self) -> int:
        """Samples of each step (B)."""
        return len(self.lengths) // self.steps

    @cached_property
    def work(self) -> list[int]:
        """What one more sample costs, falling, shape [W*B]: tokens as they are, other costs rounded."""
        per_sample = self.cost.per_sample(self.cost.padded(self.lengths))
        if self.cost.cost_type not in ("tokens", "tokens_sq") and per_sample[0] > 0:
            per_sample = np.rint(per_sample / per_sample[0] * WORK_RESOLUTION)
        work: list[int] = np.maximum(per_sample, 1).astype(np.int64).tolist()
        return work

    @cached_property
    def tokens_before(self) -> list[int]:
        """Tokens of all longer samples, shape [W*B + 1]."""
        before: list[int] = np.concatenate(([0], np.cumsum(self.lengths))).tolist()
        return before

    def price(self, deal: Deal) -> int:
        """Sum over the steps of the dearest share's work, or of its square for `tokens_sq`."""
        dearest = map(max, deal.heads, deal.lasts)
        return sum(work * work for work in dearest) if self.cost.cost_type == "tokens_sq" else sum(dearest)

    def step_tokens(self, deal: Deal) -> list[int]:
        """Tokens of each step before padding, shape [W]."""
        before, tokens, start = self.tokens_before, [0] * self.steps, 0
        for step, count in zip(deal.order, deal.counts, strict=True):
            end = start + count
            tokens[step] += before[end] - before[start]
            start = end
        return tokens

    def sweep(self, order: list[int], thresholds: list[int]) -> Deal:
        """Deal all samples: exactly B to every step and at least one to every share.

        Where capacity is scarce a share takes more than its threshold allows, lest the later ones overflow.

        Args:
            order: step of each share, longest samples first, every step G times, shape [W*G].
            thresholds: most that a share may cost, its step's last share excepted, shape [W], work.
        """
        work, limits = self.work, self.limits
        shares_left = [self.workers] * self.steps
        room = [self.global_batch] * self.steps
        heads, lasts = [0] * self.steps, [0] * self.steps
        counts: list[int] = []
        start = excess = 0
        for step in order:
            unit, after = work[start], shares_left[step] - 1
            if after:
                shares_left[step] = after
                count, most = thresholds[step] // unit, room[step] - after
                if limits is not None:
                    count = min(max(count, room[step] - after * limits[-1]), limits[start])
                if count > most:
                    count = most
                elif count < 1:
                    count = 1
                room[step] -= count
                spent = count * unit
                if spent > heads[step]:
                    heads[step] = spent
            else:
                count = room[step]
                lasts[step] = count * unit
            if limits is not None and count > limits[start]:
                excess += count - limits[start]
            start += count
            counts.append(count)
        return Deal(order, thresholds, counts, heads, lasts, excess)

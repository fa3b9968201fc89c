"""`token_budget`: padded max-tokens batching, as in fairseq (Ott et al., NAACL 2019 demo) and its kin.

The epoch is sorted by length and cut into batches of at most T padded tokens; batches are shuffled and dealt to ranks
G at a time. Every batch costs nearly T, but a step's samples vary in number and each rank's are of one length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import count

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule.plan import IntArray, StepPlan, single
from dynbench.schedule.policy import Policy, Problem


class TokenBudget(Policy):
    """T is the least budget under which the mean step has at least B samples; an incomplete last step is dropped.

    Raises:
        NothingFits: a sample is longer than every capacity allows.
    """

    level = "stream"
    fixed_batch = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        descending = np.sort(problem.padded_lengths)[::-1]
        limits = problem.capacity.limits(problem.workers, descending).min(axis=0)
        if limits[0] < 1:
            raise NothingFits(f"a sample of {descending[0]} tokens is longer than a rank's capacity allows")
        most = problem.global_batch
        batches = max(problem.workers, len(descending) * problem.workers // most)
        longest = int(descending[0])

        def enough(budget_tokens: int) -> bool:
            return len(_cuts(descending, limits, budget_tokens)) <= batches

        self.budget_tokens = longest + bisect_left(range(longest, longest * most), True, key=enough)
        self._starts = _cuts(descending, limits, self.budget_tokens)

    @property
    def steps_per_epoch(self) -> int:
        """Steps until the next epoch begins, whether or not all samples were taken."""
        return max(1, len(self._starts) // self.problem.workers)

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on."""
        ranks, steps = self.problem.workers, self.steps_per_epoch
        epoch, offset = divmod(start, steps)
        for current in count(epoch):
            batches = self._batches(current)
            for step in range(offset, steps):
                shares = batches[step * ranks : (step + 1) * ranks]
                yield StepPlan(current * steps + step, single(shares))
            offset = 0

    def _batches(self, epoch: int) -> list[IntArray]:
        """The epoch's batches, shuffled; samples of equal length change places from epoch to epoch."""
        arrival = self.problem.data_order().permutation(epoch)
        ordered = arrival[np.argsort(-self.problem.padded_lengths[arrival], kind="stable")]
        batches = np.split(ordered, self._starts[1:])
        # The parts of a batch keep to the budget and to the capacities as it does; equal cuts of the epoch may not.
        while len(batches) < self.problem.workers:
            most = max(range(len(batches)), key=lambda i: len(batches[i]))
            batches[most : most + 1] = np.array_split(batches[most], 2)
        order = np.random.default_rng([self.problem.seed, epoch, 1]).permutation(len(batches))
        return [batches[i] for i in order]


def _cuts(descending: IntArray, limits: IntArray, budget_tokens: int) -> list[int]:
    """First positions of the batches: from the longest on, each as many samples as budget and capacity allow."""
    sizes = np.minimum(budget_tokens // descending, limits).tolist()
    starts, position = [], 0
    while position < len(sizes):
        starts.append(position)
        position += sizes[position]
    return starts

"""`group_by_length`: transformers' own sampler; whole global batches of nearly one length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.transformers_samplers import accumulation_steps, sampler_class
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Coverage, Policy, Problem


class GroupByLength(Policy):
    """`LengthGroupedSampler` as the Trainer uses it: per-rank batches of B/(G*N), dealt to the ranks in turn, N times.

    Raises:
        UsageError: transformers or torch is missing, or B is no multiple of G times N micro-batches.
    """

    level = "stream"
    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._accumulated = accumulation_steps(problem)
        if problem.global_batch % (problem.workers * self._accumulated):
            each = "" if self._accumulated == 1 else f" times {self._accumulated} micro-batches"
            ranks = f"{problem.workers} ranks{each}"
            raise UsageError(
                f"train.global_batch: {problem.global_batch} is not a multiple of the {ranks}",
                "group_by_length deals equal counts.",
            )
        self._sampler = sampler_class(self.name, "LengthGroupedSampler")
        self._order = problem.data_order()

    @property
    def coverage(self) -> Coverage:
        """The incomplete last batch is dropped."""
        return Coverage(lost=len(self.problem.lengths) % self.problem.global_batch)

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on; the incomplete last step of an epoch is dropped."""
        import torch

        problem, steps, rounds = self.problem, self._order.steps_per_epoch, self._accumulated
        per_rank = problem.global_batch // problem.workers
        lengths = problem.lengths.tolist()
        epoch, offset = divmod(start, steps)
        for current in count(epoch):
            seed = int(np.random.default_rng([problem.seed, current]).integers(2**62))
            sampler = self._sampler(per_rank, lengths=lengths, generator=torch.Generator().manual_seed(seed))
            ids = np.fromiter(sampler, dtype=np.int64, count=len(lengths))
            for step in range(offset, steps):
                batch = ids[step * problem.global_batch : (step + 1) * problem.global_batch]
                parts = batch.reshape(rounds, problem.workers, -1).swapaxes(0, 1)
                yield StepPlan(current * steps + step, tuple(tuple(share) for share in parts))
            offset = 0

"""`hf_batch_rebalance`: transformers' own batch rebalancing: uneven counts by hill climbing, on its fixed cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.base import Peer
from dynbench.schedule.peers.transformers_samplers import accumulation_steps, sampler_class
from dynbench.schedule.plan import IntArray, Share, StepPlan
from dynbench.schedule.policy import Problem


class BatchRebalance(Peer):
    """`BatchRebalanceSampler`'s split of static's batches; its cost is n*L + 0.001*n*L**2, whatever ours is.

    Raises:
        UsageError: transformers or torch is missing, or too old for this sampler; less than a sample per micro-batch.
    """

    splits = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._lengths: list[int] = problem.lengths.tolist()
        accumulated = accumulation_steps(problem)
        if problem.global_batch < problem.workers * accumulated:
            raise UsageError(
                f"schedule.micro_batches: {accumulated} on each of {problem.workers} ranks for "
                f"{problem.global_batch} samples",
                f"Use at most {problem.global_batch // problem.workers}.",
            )
        self._sampler = sampler_class(self.name, "BatchRebalanceSampler")(
            lengths=self._lengths,
            effective_batch_size=problem.global_batch,
            dp_size=problem.workers,
            grad_accum=accumulated,
        )

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """One plan per batch; ranks of unequal speed are served in order of speed where there is one micro-batch."""
        if self._sampler.grad_accum == 1:
            return super().deal(batches, first_step)
        return [StepPlan(step, self._shares(batch)) for step, batch in enumerate(batches, first_step)]

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in the sampler's rank order."""
        return [share[0] for share in self._shares(batch)]

    def _shares(self, batch: IntArray) -> tuple[Share, ...]:
        """Micro-batches per rank.

        Iterating the sampler gives one rank's share and computes all; the step that computes them is called once.
        """
        ids = batch.tolist()
        ranks = self._sampler._assign(ids, [self._lengths[i] for i in ids])
        return tuple(tuple(np.array(part, dtype=np.int64) for part in parts) for parts in ranks)

"""What the baselines that deal one global batch anew have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from dynbench.schedule.plan import FloatArray, IntArray, StepPlan, single
from dynbench.schedule.policy import BatchPolicy, Problem


class Peer(BatchPolicy):
    """A baseline that splits one global batch into a group per rank, one micro-batch each, and knows no capacities."""

    @abstractmethod
    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups of sample ids, one per rank in any order, from a global batch of shape [B]."""

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """One plan per batch."""
        return [
            StepPlan(step, single(to_ranks(self.groups(batch), self.problem)))
            for step, batch in enumerate(batches, first_step)
        ]

    def weights(self, batch: IntArray) -> FloatArray:
        """What each sample would cost if it were not padded to another's length, shape [B]."""
        return self.problem.cost.per_sample(self.problem.padded_lengths[batch])


def to_ranks(groups: Sequence[IntArray], problem: Problem) -> list[IntArray]:
    """The groups in rank order: none empty, and the dearest on the fastest rank where speeds differ."""
    filled = fill_empty(groups)
    if problem.speeds is None:
        return filled
    counts = np.array([len(ids) for ids in filled])
    longest = np.array([problem.padded_lengths[ids].max() for ids in filled])
    by_cost = np.argsort(-problem.cost.cost_padded(counts, longest), kind="stable")
    by_speed = np.argsort(-problem.relative_speeds(), kind="stable")
    ordered = [filled[0]] * len(filled)
    for rank, group in zip(by_speed.tolist(), by_cost.tolist(), strict=True):
        ordered[rank] = filled[group]
    return ordered


def fill_empty(groups: Sequence[IntArray]) -> list[IntArray]:
    """The same groups, where each empty one takes a sample from the one that has most: a rank cannot sit out a step."""
    filled = list(groups)
    for index, group in enumerate(filled):
        if not len(group):
            most = max(range(len(filled)), key=lambda i: len(filled[i]))
            filled[index], filled[most] = filled[most][-1:], filled[most][:-1]
    return filled

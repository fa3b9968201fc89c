"""What the baselines have in common: those that deal one global batch anew, and those that cut a whole epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.capacity import UNLIMITED
from dynbench.schedule.plan import IntArray, StepPlan, single, stable_argsort
from dynbench.schedule.policy import BatchPolicy, Coverage, Policy, Problem


class Peer(BatchPolicy):
    """A baseline that splits one global batch into a group per rank, one micro-batch each, and knows no capacities."""

    @abstractmethod
    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups of sample ids, one per rank in any order, from a global batch of shape [B]."""

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """One plan per batch."""
        return [
            StepPlan(step, single(to_ranks(self.groups(batch), self.problem)), packed=self.problem.packed)
            for step, batch in enumerate(batches, first_step)
        ]


class EpochPolicy(Policy):
    """A baseline that cuts whole epochs into micro-batches, dealt to the ranks in turn; a step's samples may vary."""

    level = "stream"
    fixed_batch = False
    rounds = 1
    """Micro-batches per rank."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Steps until the next epoch begins, whether or not all samples were taken."""

    @abstractmethod
    def micro_batches(self, epoch: int) -> Sequence[IntArray]:
        """Ids of an epoch's micro-batches, rank by rank and step by step; those beyond the last step are dropped."""

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on."""
        ranks, steps = self.problem.workers, self.steps_per_epoch
        epoch, offset = divmod(start, steps)
        for current in count(epoch):
            parts = self.micro_batches(current)
            for step in range(offset, steps):
                dealt = parts[step * ranks * self.rounds : (step + 1) * ranks * self.rounds]
                shares = tuple(tuple(dealt[rank::ranks]) for rank in range(ranks))
                yield StepPlan(current * steps + step, shares, packed=self.problem.packed)
            offset = 0

    @property
    def coverage(self) -> Coverage:
        """Counted."""
        taken = self.micro_batches(0)[: self.steps_per_epoch * self.problem.workers * self.rounds]
        times = np.bincount(np.concatenate(taken), minlength=len(self.problem.lengths))
        return Coverage(lost=int((times == 0).sum()), repeated=int((times > 1).sum()))


def row_limit(problem: Problem) -> int:
    """Most tokens of a row that every rank holds, whatever its longest sample; `UNLIMITED` where there is no limit.

    Raises:
        NothingFits: the longest sample is longer than some rank's capacity allows.
    """
    longest = problem.lengths.max()
    most = int(problem.capacity.limits(problem.workers, np.array([longest])).min())
    if most < longest:
        raise NothingFits(f"a sample of {longest} tokens is longer than a rank's capacity allows")
    return most


def row_tokens(problem: Problem) -> int:
    """That limit, and where there is none a rank's part of the mean global batch, but at least the longest sample.

    Raises:
        NothingFits: as `row_limit`.
    """
    most = row_limit(problem)
    if most < UNLIMITED:
        return most
    mean = problem.lengths.sum() * problem.global_batch / (len(problem.lengths) * problem.workers)
    return max(int(problem.lengths.max()), int(np.ceil(mean)))


def check_equal_counts(name: str, problem: Problem) -> None:
    """Refuse a global batch that cannot be dealt in equal counts.

    Raises:
        UsageError: B is no multiple of G.
    """
    if problem.global_batch % problem.workers:
        raise UsageError(
            f"train.global_batch: {problem.global_batch} is not a multiple of the {problem.workers} ranks",
            f"{name} deals equal counts.",
        )


def to_ranks(groups: Sequence[IntArray], problem: Problem) -> list[IntArray]:
    """The groups in rank order: none empty, and the dearest padded one on the fastest rank where speeds differ."""
    filled = fill_empty(groups)
    if problem.speeds is None or problem.packed:
        return filled
    counts = np.array([len(ids) for ids in filled])
    longest = np.array([problem.padded_lengths[ids].max() for ids in filled])
    extra = np.array([np.sum(problem.extra_of(ids)) for ids in filled])
    by_cost = stable_argsort(-problem.cost.cost_padded(counts, longest, extra))
    by_speed = stable_argsort(-problem.relative_speeds())
    return [filled[group] for group in by_cost[np.argsort(by_speed)]]


def fill_empty(groups: Sequence[IntArray]) -> list[IntArray]:
    """The same groups, where each empty one takes a sample from the one that has most: a rank cannot sit out a step."""
    filled = list(groups)
    for index, group in enumerate(filled):
        if not len(group):
            most = max(range(len(filled)), key=lambda i: len(filled[i]))
            filled[index], filled[most] = filled[most][-1:], filled[most][:-1]
    return filled

"""Policies by the samplers of the installed transformers, imported when one is made."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.base import EpochPolicy, Peer
from dynbench.schedule.plan import IntArray, Share, StepPlan, integers
from dynbench.schedule.policy import Coverage, Problem, check_enough_samples


def accumulation_steps(problem: Problem) -> int:
    """Micro-batches per rank, the Trainer's `gradient_accumulation_steps`; 1 for auto: these know no capacities."""
    return 1 if problem.micro_batches == "auto" else problem.micro_batches


def sampler_class(policy: str, name: str) -> Any:
    """A class of `transformers.trainer_pt_utils`; untyped, as its module is.

    Raises:
        UsageError: transformers or torch is missing, or this transformers has no such sampler.
    """
    try:
        import_module("torch")
        module = import_module("transformers.trainer_pt_utils")
    except ImportError as error:
        reason = f"{policy} needs transformers and torch ({error})"
        raise UsageError(reason, "pip install transformers torch") from error
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{policy}: the installed transformers has no {name}", "Install transformers 5.23 or later.")
    return found


class GroupByLength(EpochPolicy):
    """`LengthGroupedSampler` as the Trainer uses it: per-rank batches of B/(G*N), dealt to the ranks in turn, N times.

    Raises:
        UsageError: transformers or torch is missing, or B is no multiple of G times N micro-batches.
    """

    splits = fixed_batch = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.rounds = accumulation_steps(problem)
        if problem.global_batch % (problem.workers * self.rounds):
            each = "" if self.rounds == 1 else f" times {self.rounds} micro-batches"
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

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches; the incomplete last one is dropped."""
        return self._order.steps_per_epoch

    def micro_batches(self, epoch: int) -> Sequence[IntArray]:
        """The sampler's batches, each in as many parts as there are micro-batches of all ranks."""
        import torch

        problem, lengths = self.problem, self.problem.lengths.tolist()
        seed = int(np.random.default_rng([problem.seed, epoch]).integers(2**62))
        per_rank, generator = problem.global_batch // problem.workers, torch.Generator().manual_seed(seed)
        ids = integers(list(self._sampler(per_rank, lengths=lengths, generator=generator)))
        steps = self.steps_per_epoch
        return np.split(ids[: steps * problem.global_batch], steps * problem.workers * self.rounds)


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
        check_enough_samples(problem)
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
        return tuple(tuple(integers(part) for part in parts) for parts in ranks)

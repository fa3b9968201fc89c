"""What is to be planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Literal

import numpy as np

from dynbench.errors import UsageError
from dynbench.plugins.policies import Layout
from dynbench.plugins.strategies import Objective
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import DataOrder, FloatArray, IntArray


@dataclass(frozen=True)
class Problem:
    """What is to be planned: the data, the workers, and what they can hold.

    Ranks of a plan are its workers, counted from 0; ranks that train nothing are in no plan.

    Args:
        lengths: tokens of every sample, after truncation and before padding, shape [N].
        workers: ranks that train (G).
        global_batch: samples per step over all ranks (B).
        cost: predicted cost of a micro-batch.
        capacity: largest micro-batch per worker and length; of packed rows a `PackedCapacity`.
        speeds: relative speed of each worker, shape [G]; its time is its cost divided by it.
        seed: data order and tie-breaks.
        order: `shuffle` (a seeded permutation per epoch) or `file`.
        window: global batches planned together (W).
        solver: for `prefix`: exact, enumerate or greedy.
        buffer: for `prefix`: samples held per rank (K).
        micro_batches: micro-batches per rank and step, or auto.
        objective: of plans of several micro-batches per rank: `sum`, ranks meet once a step, and the slowest rank's sum
            is made least; `slots`, they meet in every micro-batch, and the sum of the slowest rank's is.
        settings: the `schedule` section, for policies with options of their own (`dynbench.plugins.options_of`).
        layout: `padded`, or what makes a micro-batch a row of real tokens, all of which are planned alike.
        second: of every sample a second number from 0 on, shape [N], such as its image patches or the tokens that it
            generates; what they cost is added up over the samples of a micro-batch, without padding or attention.
        second_weight: tokens that cost as much as one unit of it.

    Raises:
        UsageError: no samples, a length below 1, fewer samples per step than ranks, speeds or capacities that do not
            match the workers, capacities of the other layout, or a second number that is missing or below 0.
    """

    lengths: IntArray
    workers: int
    global_batch: int
    cost: CostModel = field(default_factory=CostModel)
    capacity: Capacity = field(default_factory=Capacity)
    speeds: FloatArray | None = None
    seed: int = 0
    order: Literal["shuffle", "file"] = "shuffle"
    window: int = 1
    solver: Literal["exact", "enumerate", "greedy"] = "exact"
    buffer: int | None = None
    micro_batches: int | Literal["auto"] = 1
    objective: Objective = "sum"
    settings: object = None
    layout: Layout = "padded"
    second: IntArray | None = None
    second_weight: float = 1.0

    def __post_init__(self) -> None:
        if len(self.lengths) == 0:
            raise UsageError("no samples to plan", "The data is empty.")
        if int(self.lengths.min()) < 1:
            row = int(self.lengths.argmin())
            raise UsageError(f"sample {row}: length {int(self.lengths[row])}", "Lengths are at least 1 token.")
        if self.global_batch < self.workers:
            raise UsageError(
                f"train.global_batch: {self.global_batch} is less than the {self.workers} ranks",
                f"Every rank needs a sample: use at least {self.workers}.",
            )
        self.capacity.check_ranks(self.workers)
        if not self.capacity.unlimited and isinstance(self.capacity, PackedCapacity) != self.packed:
            raise UsageError(
                f"schedule.capacity: in {self.capacity.unit}, with micro-batches that are {self.layout}",
                "Padded ones are limited in samples (Capacity), packed rows in tokens (PackedCapacity).",
            )
        if self.speeds is not None and (len(self.speeds) != self.workers or min(self.speeds) <= 0):
            raise UsageError(
                f"schedule.speeds: {list(map(float, self.speeds))} for {self.workers} ranks",
                "Give one positive number per rank.",
            )
        if not (isfinite(self.second_weight) and self.second_weight >= 0):
            raise UsageError(f"schedule.second_weight: {self.second_weight}", "Give tokens per unit, from 0 on.")
        if self.second is not None and (self.second.shape != self.lengths.shape or self.second.min() < 0):
            raise UsageError(
                f"second: shape {self.second.shape}, from {self.second.min(initial=0)} on",
                f"Give one number from 0 on for each of the {len(self.lengths)} samples.",
            )

    @property
    def packed(self) -> bool:
        """Whether a micro-batch is a row of real tokens."""
        return self.layout != "padded"

    @cached_property
    def padded_lengths(self) -> IntArray:
        """Lengths rounded up to the cost model's `pad_to_multiple_of`, shape [N], tokens; packed ones as they are."""
        return self.lengths if self.packed else self.cost.padded(self.lengths)

    @cached_property
    def extra(self) -> FloatArray | None:
        """What every sample costs besides its length, shape [N], tokens; None where that is nothing."""
        if self.second is None or not self.second_weight or not self.second.any():
            return None
        return self.second.astype(np.float64) * self.second_weight

    def extra_of(self, ids: IntArray) -> FloatArray | float:
        """As `extra`, of some samples, same shape; 0 where it is None."""
        return 0.0 if self.extra is None else self.extra[ids]

    def weights(self, ids: IntArray) -> FloatArray:
        """What each sample would cost if it were not padded to another's length, alpha apart; same shape."""
        return self.cost.per_sample(self.padded_lengths[ids], self.extra_of(ids))

    @property
    def equal_ranks(self) -> bool:
        """True when all ranks have the same speed and capacities."""
        return self.capacity.equal(self.workers) and (self.speeds is None or len(set(map(float, self.speeds))) == 1)

    def data_order(self) -> DataOrder:
        """The stream of global batches, as a distributed sampler would deal them."""
        return DataOrder(len(self.lengths), self.global_batch, self.seed, self.order)

    def relative_speeds(self) -> FloatArray:
        """Speeds, shape [G]; ones when none were given."""
        return np.ones(self.workers) if self.speeds is None else np.asarray(self.speeds, dtype=np.float64)


def check_micro_batches(policy: str, splits: bool, problem: Problem) -> None:
    """Several micro-batches per rank are planned for ranks of equal capacity, by the policies that can.

    Raises:
        UsageError: any other combination.
    """
    asked = f"schedule.micro_batches: {problem.micro_batches}"
    if not splits:
        raise UsageError(
            f"{asked} with policy {policy!r}",
            "static, partition, window and transformers' samplers can; or use micro_batches=1.",
        )
    if not problem.capacity.equal(problem.workers):
        raise UsageError(f"{asked} with ranks of unequal capacity", "Use micro_batches=1, or the least capacity.")

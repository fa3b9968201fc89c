"""What is to be planned, the interface of a policy, and its plans on demand.

A policy turns an endless, seeded stream of global batches into step plans. Adding one: a file in this package with a
subclass of `BatchPolicy` (plans global batches, W at a time) or `Policy` (chooses its samples itself), and one entry
in `dynbench/plugins/policies.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from math import isfinite
from typing import ClassVar, Literal

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout
from dynbench.plugins.strategies import Objective
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import DataOrder, FloatArray, IntArray, Share, StepPlan, floats


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
        objective: of plans of several micro-batches per rank: `sum`, ranks synchronise once a step, and the slowest
            rank's sum is made least; `slots`, they do so in every micro-batch, and the sum of the slowest rank's is.
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
        return floats(self.second) * self.second_weight

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
        return np.ones(self.workers) if self.speeds is None else floats(self.speeds)


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


Level = Literal["step", "window", "stream"]
OnStep = Callable[[int], None]
"""Told which step comes next."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What becomes of an epoch's samples besides being taken once, in samples.

    Attributes:
        lost: in no step.
        repeated: in more than one.
        cut: in more than one piece, or only in part.
    """

    lost: int = 0
    repeated: int = 0
    cut: int = 0


def check_enough_samples(problem: Problem) -> None:
    """Every micro-batch of a fixed number needs a sample.

    Raises:
        UsageError: fewer samples than ranks times micro-batches.
    """
    parts, ranks, batch = problem.micro_batches, problem.workers, problem.global_batch
    if parts != "auto" and batch < ranks * parts:
        raise UsageError(
            f"schedule.micro_batches: {parts} on each of {ranks} ranks for {batch} samples",
            f"Use at most {batch // ranks}, or a train.global_batch of at least {ranks * parts}.",
        )


class Policy(ABC):
    """Turns a problem into step plans; a pure function of the problem and the step."""

    level: ClassVar[Level]
    """How far its samples per step agree with `static`'s."""
    splits: ClassVar[bool] = False
    """Can run a share as several micro-batches (`Problem.micro_batches`)."""
    fixed_batch: ClassVar[bool] = True
    """Takes exactly `global_batch` samples in every step."""

    def __init__(self, problem: Problem) -> None:
        check_layout(self.name, problem.layout)
        if problem.micro_batches != 1:
            check_micro_batches(self.name, self.splits, problem)
        self.problem = problem

    @property
    def name(self) -> str:
        """What it is registered as."""
        return POLICIES.name_of(type(self))

    @abstractmethod
    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on."""

    def misfit(self, steps: int, on_step: OnStep = lambda step: None) -> NothingFits | None:
        """What ends a run of `steps` steps before its time; None where the capacities hold all of them.

        Here the steps are planned; a policy that can tell by less overrides it.
        """
        try:
            for plan in islice(self.plans(), steps):
                on_step(plan.step + 1)
        except NothingFits as error:
            return error
        return None

    @property
    def lengths(self) -> IntArray:
        """Tokens of what the ids of its plans name: samples, or the pieces into which it cuts them."""
        return self.problem.lengths

    @property
    def coverage(self) -> Coverage:
        """What becomes of the samples of the first epoch."""
        return Coverage()

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """Plan for other speeds, shape [G], from what is dealt next on; plans under way go on from their samples."""
        self.problem = replace(self.problem, speeds=speeds)


class BatchPolicy(Policy):
    """A policy that deals `window` of static's global batches anew, without choosing other samples."""

    level: ClassVar[Level] = "step"

    @property
    def window(self) -> int:
        """Global batches dealt together."""
        return 1

    @property
    def coverage(self) -> Coverage:
        """The incomplete last batch is dropped."""
        return Coverage(lost=len(self.problem.lengths) % self.problem.global_batch)

    @abstractmethod
    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """Plans of consecutive steps from their global batches (sample ids, shape [B] each, in static's order)."""

    def check(self, batches: Sequence[IntArray], first_step: int) -> None:
        """Raise what `deal` would raise, by less work where that is possible."""
        self.deal(batches, first_step)

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on; windows begin anew with every epoch."""
        for batches, first_step in self._windows(start):
            for plan in self.deal(batches, first_step):
                if plan.step >= start:
                    yield plan

    def misfit(self, steps: int, on_step: OnStep = lambda step: None) -> NothingFits | None:
        """As the base, by `check`."""
        for batches, first_step in self._windows(0):
            if first_step >= steps:
                break
            on_step(first_step)
            try:
                self.check(batches, first_step)
            except NothingFits as error:
                return error
        return None

    def _windows(self, start: int) -> Iterator[tuple[list[IntArray], int]]:
        """The batches dealt together and their first step, endless, from the window that holds step `start` on."""
        order = self.problem.data_order()
        epoch, offset = divmod(start, order.steps_per_epoch)
        for current in count(epoch):
            batches = order.epoch_batches(current)
            base = current * order.steps_per_epoch
            for first in range(offset - offset % self.window, order.steps_per_epoch, self.window):
                yield list(batches[first : first + self.window]), base + first
            offset = 0


def policy_class(name: str) -> type[Policy]:
    """The class behind a name.

    Raises:
        UsageError: unknown name, with the nearest spelling.
    """
    policy: type[Policy] = POLICIES.find(name).load()
    return policy


def check_layout(name: str, layout: Layout) -> None:
    """Refuse a layout that a policy makes no sense under.

    Raises:
        UsageError: with those that do.
    """
    if name in POLICIES and layout not in POLICIES[name].layouts:
        known = " or ".join(key for key, entry in POLICIES.items() if layout in entry.layouts and entry.in_train)
        raise UsageError(
            f"workload.layout: {layout!r} makes no sense under policy {name!r}",
            f"Plan with {known}, or leave the layout out.",
        )


def check_trainable(name: str) -> None:
    """Refuse a policy that cannot train here, before anything is launched.

    Raises:
        UsageError: unknown name, a reference line of `solve`, or a package it needs is missing.
    """
    entry = POLICIES.find(name)
    if not entry.in_train:
        raise UsageError(
            f"schedule.policy: {name!r} is a reference line of `dynbench solve` and cannot train",
            "Try partition; dynbench solve --list lists all.",
        )
    if entry.missing:
        raise UsageError(f"schedule.policy: {name} {entry.missing}", f"pip install {entry.needs}")


def make_policy(name: str, problem: Problem) -> Policy:
    """The named policy for a problem.

    Raises:
        UsageError: unknown name, with the nearest spelling; or a package it needs is missing.
    """
    return policy_class(name)(problem)


class Planner:
    """The plans of one policy, one step at a time.

    Args:
        policy_name: a name of the registry.
        problem: what is to be planned.

    Raises:
        UsageError: unknown policy, or a problem that it cannot plan.
    """

    def __init__(self, policy_name: str, problem: Problem) -> None:
        self.policy: Policy = make_policy(policy_name, problem)
        self._last: StepPlan | None = None
        self._plans: Iterator[StepPlan]

    def plan(self, step: int) -> StepPlan:
        """The plan of optimizer step `step`, counted from 0.

        Cheap for consecutive steps and for the last one again; any other step starts anew (a policy that keeps streams
        replays them from step 0).

        Raises:
            NothingFits: the step's samples do not fit into the capacities.
        """
        last = self._last
        if last is not None and last.step == step:
            return last
        if last is None or last.step + 1 != step:
            self._plans = self.policy.plans(step)
        self._last = None
        self._last = next(self._plans)
        return self._last

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """Plan for ranks of other relative speeds, shape [G], from the next step on, which must be asked for in order.

        `window` first ends the window it is in. No sample is lost or taken twice.
        """
        self.policy.change_speeds(speeds)

    def observe(self, rank: int, share: Share, compute_ms: float) -> None:
        """A rank of this process computed its share of the last plan in so many milliseconds; of no use here."""

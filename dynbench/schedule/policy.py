"""The interface of a policy.

A policy turns an endless, seeded stream of global batches into step plans. Adding one: a file in this package with a
subclass of `BatchPolicy` (plans global batches, W at a time) or `Policy` (chooses its samples itself), and one line
in `dynbench/plugins/policies.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import ClassVar, Literal

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan
from dynbench.schedule.problem import Problem as Problem
from dynbench.schedule.problem import check_micro_batches

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

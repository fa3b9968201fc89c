"""The interface of a policy and the registry of policies.

A policy turns an endless, seeded stream of global batches into step plans. Adding one: a file in this package with a
subclass of `BatchPolicy` (plans global batches, W at a time) or `Policy` (chooses its samples itself), and one line
in `REGISTRY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count, islice
from typing import ClassVar, Literal

from dynbench.errors import NothingFits, UsageError, did_you_mean
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan
from dynbench.schedule.problem import Problem as Problem
from dynbench.schedule.problem import check_micro_batches

Level = Literal["step", "window", "stream"]
OnStep = Callable[[int], None]
"""Told which step comes next."""


class Policy(ABC):
    """Turns a problem into step plans; a pure function of the problem and the step."""

    name: ClassVar[str]
    level: ClassVar[Level]
    """How far its samples per step agree with `static`'s."""
    splits: ClassVar[bool] = False
    """Can run a share as several micro-batches (`Problem.micro_batches`)."""
    capped: ClassVar[bool] = True
    """Keeps to the capacities, or says that nothing fits; False for baselines that do not know them."""
    fixed_batch: ClassVar[bool] = True
    """Takes exactly `global_batch` samples in every step."""

    def __init__(self, problem: Problem) -> None:
        if problem.micro_batches != 1:
            check_micro_batches(self.name, self.splits, problem)
        self.problem = problem

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


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the registry."""

    target: str
    """`module:class`, imported when used."""
    summary: str
    """One line for `dynbench solve --list`."""
    in_train: bool = True
    """False for reference lines that cannot train a padded model."""
    needs: str | None = None
    """A package that must be importable, if any."""
    slow_above: int | None = None
    """World size times global batch above which one plan takes seconds, and `solve --policy all` leaves it out."""


REGISTRY: dict[str, Entry] = {
    "static": Entry("dynbench.schedule.static:Static", "equal sample counts, as a distributed sampler deals them"),
    "partition": Entry(
        "dynbench.schedule.partition:Partition", "the global batch dealt anew, least maximum cost, exact"
    ),
    "window": Entry(
        "dynbench.schedule.window:Window", "W global batches dealt anew together, least sum of the steps' maxima"
    ),
    "prefix": Entry("dynbench.schedule.prefix:Prefix", "each rank keeps its stream; only the counts are planned"),
    "sorted_equal": Entry(
        "dynbench.schedule.peers.sorted_equal:SortedEqual", "the batch sorted, cut into equal counts"
    ),
    "lpt": Entry(
        "dynbench.schedule.peers.lpt:LongestFirst", "longest first to the least loaded rank, padding not seen"
    ),
    "karmarkar_karp": Entry(
        "dynbench.schedule.peers.karmarkar_karp:KarmarkarKarp",
        "largest differencing, any counts",
        needs="prtpy",
        slow_above=1_000_000,
    ),
    "karmarkar_karp_equal": Entry(
        "dynbench.schedule.peers.karmarkar_karp:KarmarkarKarpEqual", "largest differencing, equal counts"
    ),
    "token_budget": Entry(
        "dynbench.schedule.peers.token_budget:TokenBudget", "sorted epoch cut at a token budget; the batch size varies"
    ),
    "group_by_length": Entry(
        "dynbench.schedule.peers.group_by_length:GroupByLength", "transformers' length-grouped sampler", needs="torch"
    ),
    "hf_batch_rebalance": Entry(
        "dynbench.schedule.peers.hf_batch_rebalance:BatchRebalance", "transformers' batch rebalancing", needs="torch"
    ),
    "packed": Entry(
        "dynbench.schedule.peers.packed:Packed", "no padding, balanced rows; a reference line", in_train=False
    ),
}


def policy_names() -> tuple[str, ...]:
    """All registered names, in order."""
    return tuple(REGISTRY)


def policy_class(name: str) -> type[Policy]:
    """The class behind a name.

    Raises:
        UsageError: unknown name, with the nearest spelling.
    """
    entry = REGISTRY.get(name)
    if entry is None:
        raise UsageError(
            f"schedule.policy: {name!r} is not a policy. {did_you_mean(name, REGISTRY)}".rstrip(),
            f"Known: {', '.join(REGISTRY)}.",
        )
    module, _, attribute = entry.target.partition(":")
    policy: type[Policy] = getattr(import_module(module), attribute)
    return policy


def missing_package(name: str) -> str | None:
    """Why a policy cannot be made here, when a package it needs is not installed."""
    needs = REGISTRY[name].needs
    return f"needs the package {needs}, which is not installed" if needs and find_spec(needs) is None else None


def check_trainable(name: str) -> None:
    """Refuse a policy that cannot train here, before anything is launched.

    Raises:
        UsageError: unknown name, a reference line of `solve`, or a package it needs is missing.
    """
    policy_class(name)
    if not REGISTRY[name].in_train:
        raise UsageError(
            f"schedule.policy: {name!r} is a reference line of `dynbench solve` and cannot train",
            "Try partition; dynbench solve --list lists all.",
        )
    if reason := missing_package(name):
        raise UsageError(f"schedule.policy: {name} {reason}", f"pip install {REGISTRY[name].needs}")


def make_policy(name: str, problem: Problem) -> Policy:
    """The named policy for a problem.

    Raises:
        UsageError: unknown name, with the nearest spelling; or a package it needs is missing.
    """
    return policy_class(name)(problem)

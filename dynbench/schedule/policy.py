"""The interface of a policy and the registry of policies.

A policy turns an endless, seeded stream of global batches into step plans. Adding one: a file in this package with a
subclass of `BatchPolicy` (plans global batches, W at a time) or `Policy` (chooses its samples itself), and one line
in `REGISTRY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import ClassVar, Literal

import numpy as np

from dynbench.errors import UsageError, did_you_mean
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.order import DataOrder
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan

Level = Literal["step", "window", "stream"]


@dataclass(frozen=True)
class Problem:
    """What is to be planned: the data, the ranks, and what they can hold.

    Args:
        lengths: tokens of every sample, after truncation and before padding, shape [N].
        world_size: ranks (G).
        global_batch: samples per step over all ranks (B).
        cost: predicted cost of a micro-batch.
        capacity: largest micro-batch per rank and length.
        speeds: relative speed of each rank, shape [G]; a rank's time is its cost divided by it.
        seed: data order and tie-breaks.
        order: `shuffle` (a seeded permutation per epoch) or `file`.
        window: global batches planned together (W).
        solver: for `prefix`: exact, enumerate or greedy.
        buffer: for `prefix`: samples held per rank (K).
        micro_batches: micro-batches per rank and step, or auto.

    Raises:
        UsageError: no samples, a length below 1, fewer samples per step than ranks, speeds or capacities that do not
            match the ranks.
    """

    lengths: IntArray
    world_size: int
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

    def __post_init__(self) -> None:
        if len(self.lengths) == 0:
            raise UsageError("no samples to plan", "The data is empty.")
        if int(self.lengths.min()) < 1:
            row = int(self.lengths.argmin())
            raise UsageError(f"sample {row}: length {int(self.lengths[row])}", "Lengths are at least 1 token.")
        if self.global_batch < self.world_size:
            raise UsageError(
                f"train.global_batch: {self.global_batch} is less than the {self.world_size} ranks",
                f"Every rank needs a sample: use at least {self.world_size}.",
            )
        self.capacity.check_ranks(self.world_size)
        if self.speeds is not None and (len(self.speeds) != self.world_size or min(self.speeds) <= 0):
            raise UsageError(
                f"schedule.speeds: {list(map(float, self.speeds))} for {self.world_size} ranks",
                "Give one positive number per rank.",
            )

    @cached_property
    def padded_lengths(self) -> IntArray:
        """Lengths rounded up to the cost model's `pad_to_multiple_of`, shape [N], tokens."""
        return self.cost.padded(self.lengths)

    @property
    def equal_ranks(self) -> bool:
        """True when all ranks have the same speed and capacities."""
        return self.capacity.equal(self.world_size) and (self.speeds is None or len(set(map(float, self.speeds))) == 1)

    def data_order(self) -> DataOrder:
        """The stream of global batches, as a distributed sampler would deal them."""
        return DataOrder(len(self.lengths), self.global_batch, self.seed, self.order)

    def relative_speeds(self) -> FloatArray:
        """Speeds, shape [G]; ones when none were given."""
        return np.ones(self.world_size) if self.speeds is None else np.asarray(self.speeds, dtype=np.float64)


def check_micro_batches(policy: str, splits: bool, problem: Problem) -> None:
    """Several micro-batches per rank are planned for W=1 and ranks of equal capacity, by the policies that can.

    Raises:
        UsageError: any other combination.
    """
    asked = f"schedule.micro_batches: {problem.micro_batches}"
    if not splits:
        raise UsageError(
            f"{asked} with policy {policy!r}",
            "static, partition and transformers' samplers can; or use micro_batches=1.",
        )
    if problem.window > 1:
        raise UsageError(f"{asked} with schedule.window {problem.window}", "Use window=1 or micro_batches=1.")
    if not problem.capacity.equal(problem.world_size):
        raise UsageError(f"{asked} with ranks of unequal capacity", "Use micro_batches=1, or the least capacity.")


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

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        """Endless plans from optimizer step `start` on; windows begin anew with every epoch."""
        order = self.problem.data_order()
        epoch, offset = divmod(start, order.steps_per_epoch)
        for current in count(epoch):
            batches = order.epoch_batches(current)
            base = current * order.steps_per_epoch
            aligned = offset - offset % self.window
            for first in range(aligned, order.steps_per_epoch, self.window):
                for plan in self.deal(list(batches[first : first + self.window]), base + first):
                    if plan.step >= start:
                        yield plan
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

"""The policies: who computes which samples."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Literal

from dynbench.errors import UsageError
from dynbench.plugins.registry import Auto, Entry, PositiveInt, Registry, Section

Layout = Literal["padded", "packed", "flattened"]
"""Of a micro-batch: as wide as its longest sample; one row of real tokens, whose samples our attention keeps apart; or
the row of transformers' DataCollatorWithFlattening, which its own attention is told of by positions alone."""
LAYOUTS: tuple[Layout, ...] = ("padded", "packed", "flattened")
ROWS: tuple[Layout, ...] = ("packed", "flattened")
"""Those whose micro-batches are rows of real tokens."""
_SHORT = "partition"
"""Whose plans the name of a layout alone means."""


@dataclass(frozen=True)
class PolicyEntry(Entry):
    """A subclass of `dynbench.schedule.policy.Policy`, called with the problem.

    Args:
        layouts: those that it makes sense under.
        in_train: False for reference lines of `solve` that cannot train.
        slow_above: world size times global batch above which one plan takes seconds, and `solve --policy all` leaves
            it out.
        capped: it keeps to the capacities, or says that nothing fits; False for baselines that do not know them.
        costs: it plans with the predicted cost.
        speeds: it plans with the ranks' speeds: always, never, or with one micro-batch a rank only.
        without_lengths: it has a use where every sample costs the same: by capacities or speeds alone.
    """

    base: ClassVar[str] = "dynbench.schedule.policy:Policy"
    layouts: tuple[Layout, ...] = ("padded",)
    in_train: bool = True
    slow_above: int | None = None
    capped: bool = True
    costs: bool = True
    speeds: Literal["always", "unsplit", "never"] = "always"
    without_lengths: bool = False


class WindowOptions(Section):
    """Of the policy that plans several global batches together."""

    window: PositiveInt = 1
    """Global batches planned together (W)."""


class PrefixOptions(Section):
    """Of the policy that keeps every rank's own stream."""

    solver: Literal["exact", "enumerate", "greedy"] = "exact"
    """Solver of `prefix`."""
    buffer: PositiveInt | Auto = "auto"
    """Samples that each rank of `prefix` holds to choose from (K); auto is max(32, B - G + 1)."""
    exchange: Literal["replicated", "gather"] = "replicated"
    """`prefix` only. `replicated`: every rank knows all lengths and makes the same plan; `gather`: costs are
    gathered to rank 0, which solves and broadcasts the counts."""


_PACKERS = {
    "verl": ("verl's balancing, equal counts, its own cost", "batch_peers:Verl"),
    "verl_free": ("the same, any counts", "batch_peers:VerlFree"),
    "nemo_rl": ("NeMo-RL's modified first fit decreasing of each batch", "row_peers:NemoRL"),
    "megatron": ("Megatron Core's next fit of each batch", "row_peers:Megatron"),
    "trl": ("TRL's best fit decreasing of the data set", "row_peers:Trl"),
    "axolotl": ("Axolotl's multipack, first fit of the epoch", "row_peers:Axolotl"),
    "torchtitan": ("torchtitan's streams cut into full rows", "row_peers:Torchtitan"),
}
"""Other trainers' packing, which is planned for comparison only: a line of each, and its class."""


def _packer(name: str, summary: str, target: str) -> PolicyEntry:
    of_batch = target.startswith("batch_peers")
    return PolicyEntry(
        name,
        summary,
        f"dynbench.schedule.peers.{target}",
        layouts=("packed",),
        in_train=False,
        slow_above=1_000_000 if of_batch else None,
        capped=not of_batch,
        costs=False,
        speeds="never",
    )


POLICIES: Registry[PolicyEntry] = Registry(
    "policy",
    "schedule.policy",
    (
        PolicyEntry(
            "static",
            "equal sample counts, as a distributed sampler deals them",
            "dynbench.schedule.static:Static",
            layouts=LAYOUTS,
            costs=False,
            speeds="never",
            without_lengths=True,
        ),
        PolicyEntry(
            "partition",
            "the global batch dealt anew, least maximum cost, exact",
            "dynbench.schedule.partition:Partition",
            layouts=LAYOUTS,
            without_lengths=True,
        ),
        PolicyEntry(
            "window",
            "W global batches dealt anew together, least sum of the steps' maxima",
            "dynbench.schedule.window:Window",
            WindowOptions,
        ),
        PolicyEntry(
            "prefix",
            "each rank keeps its stream; only the counts are planned",
            "dynbench.schedule.prefix:Prefix",
            PrefixOptions,
            without_lengths=True,
        ),
        PolicyEntry(
            "sorted_equal",
            "the batch sorted, cut into equal counts",
            "dynbench.schedule.peers.batch_peers:SortedEqual",
            capped=False,
            costs=False,
        ),
        PolicyEntry(
            "lpt",
            "longest first to the least loaded rank, padding not seen",
            "dynbench.schedule.peers.batch_peers:LongestFirst",
            capped=False,
        ),
        PolicyEntry(
            "karmarkar_karp",
            "largest differencing, any counts",
            "dynbench.schedule.peers.batch_peers:KarmarkarKarp",
            needs="prtpy",
            slow_above=1_000_000,
            capped=False,
        ),
        PolicyEntry(
            "karmarkar_karp_equal",
            "largest differencing, equal counts",
            "dynbench.schedule.peers.batch_peers:KarmarkarKarpEqual",
            capped=False,
        ),
        PolicyEntry(
            "token_budget",
            "sorted epoch cut at a token budget; the batch size varies",
            "dynbench.schedule.peers.token_budget:TokenBudget",
            layouts=LAYOUTS,
            costs=False,
            speeds="never",
        ),
        PolicyEntry(
            "group_by_length",
            "transformers' length-grouped sampler",
            "dynbench.schedule.peers.transformers_samplers:GroupByLength",
            needs="torch",
            capped=False,
            costs=False,
            speeds="never",
        ),
        PolicyEntry(
            "hf_batch_rebalance",
            "transformers' batch rebalancing",
            "dynbench.schedule.peers.transformers_samplers:BatchRebalance",
            needs="torch",
            capped=False,
            costs=False,
            speeds="unsplit",
        ),
        *(_packer(name, *packer) for name, packer in _PACKERS.items()),
    ),
)


def plan_name(policy: str, layout: Layout) -> str:
    """What a policy is called under a layout: `packed` and `flattened` are partition's, padding goes without saying."""
    if layout == "padded":
        return policy
    return layout if policy == _SHORT else f"{policy} {layout}"


def plan_of(name: str) -> tuple[str, Layout]:
    """The policy and the layout that a name of `plan_name` means; a name without a layout means padding."""
    named = {plan_name(policy, layout): (policy, layout) for layout in ROWS for policy in POLICIES}
    return named.get(name, (name, "padded"))


def named_plan(name: str, layout: Layout | None) -> tuple[str, Layout]:
    """As `plan_of`, under the layout that is given too, if any.

    Raises:
        UsageError: the name means another layout.
    """
    policy, meant = plan_of(name)
    allowed = LAYOUTS if policy == name else (meant,)
    if layout is not None and layout not in allowed:
        raise UsageError(
            f"workload.layout: {layout!r} with policy {name!r}; use {' or '.join(allowed)}, or leave the layout out"
        )
    return policy, layout or meant


def plan_names(*layouts: Layout, in_train: bool = False) -> tuple[str, ...]:
    """The names of all policies that make sense under one of some layouts, or of those that can train."""
    return tuple(
        plan_name(name, layout)
        for layout in layouts
        for name, entry in POLICIES.items()
        if layout in entry.layouts and (entry.in_train or not in_train)
    )


def whole_windows(steps: int, windows: Collection[int], steps_per_epoch: int | None = None) -> int:
    """The fewest optimizer steps, not below `steps`, after which no window of any of these sizes is left unfinished.

    Args:
        steps: optimizer steps from the first on.
        windows: global batches planned together (W), one number for each policy.
        steps_per_epoch: windows begin anew with every epoch; None where it is not known, as if all were one.
    """
    epoch = steps_per_epoch or sys.maxsize
    return next(end for end in count(steps) if all(end % epoch % size == 0 for size in windows))

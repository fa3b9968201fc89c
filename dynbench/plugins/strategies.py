"""The strategies: gradient synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dynbench.plugins.registry import (
    Entry,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Registry,
    Section,
)

Objective = Literal["sum", "slots"]
"""What plans of several micro-batches per rank make least: the slowest rank's sum of them, where ranks synchronise
once a step; or the sum, over the micro-batches, of the slowest rank's, where they do so in every one."""


@dataclass(frozen=True)
class StrategyEntry(Entry):
    """A subclass of `dynbench.sync.base.Strategy`, called with the `sync` section and a wire.

    Args:
        virtual: virtual ranks can play it: it does what they do, who add gradients up and send nothing.
        servers: ranks that it has serve and train nothing.
        across_steps: what it starts in one step goes on in the next, so that an arm's turn of a step would cut it off.
        compresses: gradients go over the wire in a way that a compressor can take part in.
        per_tensor: every parameter is a message of its own, however small.
        exact: after every step the parameters are those of one process that trained on the whole batch.
        counted: all that it sends goes over the wire.
        trains: False where ranks send nothing to each other, so that no model is trained.
        objective: what plans of several micro-batches per rank make least.
        whole: copies of the parameters that a rank holds between steps if it trains, weights and gradients among them,
            but for what the optimizer keeps.
        divided: further ones that it holds an equal part of, as all ranks that train do.
        moments: where the optimizer keeps what it keeps: whole on every rank, a part on each, or on the server.
        in_step: copies that such a rank makes besides within a step.
        served: copies that a rank that serves holds within a step, but for what the optimizer keeps.
    """

    base: ClassVar[str] = "dynbench.sync.base:Strategy"
    virtual: bool = False
    servers: int = 0
    across_steps: bool = False
    compresses: bool = True
    per_tensor: bool = False
    exact: bool = True
    counted: bool = True
    trains: bool = True
    objective: Objective = "sum"
    whole: int = 2
    divided: int = 0
    moments: Literal["whole", "divided", "served"] = "whole"
    in_step: int = 0
    served: int = 0


class BucketOptions(Section):
    """Of strategies that send gradients in buckets."""

    bucket_mb: PositiveFloat | Literal["none"] = 25.0
    """Bucket size in MiB, as torch counts it; only a parameter that is larger makes a larger bucket. none is one bucket
    for all."""


class DdpOptions(BucketOptions):
    """Of torch's DistributedDataParallel."""

    find_unused: bool = False
    """Look in every step for parameters that the loss does not depend on, as torch's find_unused_parameters; a model
    that has some fails without."""


class LocalOptions(Section):
    """Of strategies whose ranks train apart and synchronise every few steps."""

    inner_steps: PositiveInt = 8
    """Optimizer steps that every rank takes by itself between two meetings (H)."""


class DilocoOptions(LocalOptions):
    """Of DiLoCo's outer optimizer."""

    outer_rate: PositiveFloat = 0.7
    """Step size of the outer step; 1, with no momentum, makes the parameters their mean over ranks."""
    outer_momentum: NonNegativeFloat = 0.9
    """Nesterov momentum of the outer step; 0 for none."""
    fragments: PositiveInt = 1
    """Parts in which the model is synchronised, one after the other, evenly over the inner steps."""
    overlap_steps: NonNegativeInt = 0
    """Steps that ranks go on while the mean of a part is on its way, below inner_steps; 0 waits for it."""
    own_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of what a rank goes on from after overlap_steps, the share of its own parameters; the rest is of the outer step.
    0 gives up its steps meanwhile. Without overlap_steps it is not read."""


class ShardOptions(Section):
    """Of strategies whose ranks average a part of the gradient each."""

    reduce_scatter: Literal["all_to_all", "native"] = "all_to_all"
    """How gloo does it, which has no good one: all_to_all, with the sum on each rank; or its own, native, which moves
    as much as an all-reduce. Both are counted as a reduce-scatter; an emulated link is charged what is moved. Other
    back ends use their own."""


class Zero1Options(BucketOptions, ShardOptions):
    """Of buckets that are sharded."""


class FsdpOptions(ShardOptions):
    """Of torch's fully_shard."""

    reshard: bool = True
    """Free a block's parameters after its forward pass and gather them anew for the backward pass; false keeps them."""
    gather_bf16: bool = False
    """Gather and compute in bfloat16, and average gradients in float32, whatever train.precision says."""


STRATEGIES: Registry[StrategyEntry] = Registry(
    "strategy",
    "sync.name",
    (
        StrategyEntry(
            "ddp",
            "torch's DistributedDataParallel: buckets all-reduced while the backward pass runs",
            "dynbench.sync.ddp:Ddp",
            DdpOptions,
            virtual=True,
        ),
        StrategyEntry(
            "ddp_noop",
            "ddp without its communication, which trains nothing: what a step takes at least",
            "dynbench.sync.ddp:DdpNoop",
            DdpOptions,
            exact=False,
            trains=False,
        ),
        StrategyEntry(
            "naive",
            "one all-reduce per parameter, one after the other behind the backward pass",
            "dynbench.sync.replicated:Naive",
            per_tensor=True,
        ),
        StrategyEntry(
            "flat",
            "one all-reduce of all gradients together, behind the backward pass",
            "dynbench.sync.replicated:Flat",
            in_step=1,
        ),
        StrategyEntry(
            "overlap",
            "one all-reduce per parameter, each begun while the backward pass runs",
            "dynbench.sync.replicated:Overlap",
            per_tensor=True,
        ),
        StrategyEntry(
            "bucketed",
            "buckets from the last parameter to the first, each all-reduced once it is full, during the backward pass",
            "dynbench.sync.replicated:Bucketed",
            BucketOptions,
        ),
        StrategyEntry(
            "zero1",
            "buckets reduce-scattered, each rank's part stepped, parameters all-gathered during the next forward pass",
            "dynbench.sync.sharded:Zero1",
            Zero1Options,
            across_steps=True,
            divided=1,
            moments="divided",
        ),
        StrategyEntry(
            "zero1_torch",
            "ddp with torch's ZeroRedundancyOptimizer, whose own broadcasts are not counted",
            "dynbench.sync.ddp:Zero1Torch",
            DdpOptions,
            counted=False,
            moments="divided",
        ),
        StrategyEntry(
            "fsdp",
            "torch's fully_shard (FSDP2): a block's parameters gathered while it runs, its gradients reduce-scattered",
            "dynbench.sync.fsdp:Fsdp",
            FsdpOptions,
            objective="slots",
            whole=0,
            divided=2,
            moments="divided",
        ),
        StrategyEntry(
            "ps",
            "a synchronous parameter server, rank 0, which trains nothing; a message per tensor",
            "dynbench.sync.parameter_server:PerTensor",
            servers=1,
            compresses=False,
            per_tensor=True,
            moments="served",
            in_step=1,
            served=3,
        ),
        StrategyEntry(
            "ps_flat",
            "the same parameter server with one message per direction",
            "dynbench.sync.parameter_server:InOne",
            servers=1,
            compresses=False,
            moments="served",
            in_step=2,
            served=4,
        ),
        StrategyEntry(
            "local_sgd",
            "ranks step apart and take the mean of their parameters every few steps; not the same training",
            "dynbench.sync.local_steps:LocalSgd",
            LocalOptions,
            exact=False,
            whole=3,
            in_step=2,
        ),
        StrategyEntry(
            "local_sgd_torch",
            "local_sgd by torch's PeriodicModelAverager, whose messages are not counted; not the same training",
            "dynbench.sync.local_steps:LocalSgdTorch",
            LocalOptions,
            compresses=False,
            counted=False,
            exact=False,
            whole=3,
            in_step=2,
        ),
        StrategyEntry(
            "diloco",
            "ranks step apart; an outer step with momentum follows the mean of what they did; not the same training",
            "dynbench.sync.local_steps:Diloco",
            DilocoOptions,
            exact=False,
            whole=4,
            in_step=2,
        ),
    ),
)

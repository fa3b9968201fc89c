"""What ranks held: of the model in their first step, by kind, as they counted it into `env.json`; and at most."""

from __future__ import annotations

from typing import TypedDict, cast

import polars as pl

from dynbench.analysis.measure import Spread, mean_over, measure, number, shown, spread
from dynbench.analysis.merge import MergedRun
from dynbench.config.held import copies_held
from dynbench.config.ranks import ranks_of

MEMORY = "memory"
"""Title of the family of metrics."""
MOMENTS = ("initialised", "before_step", "after_step")


class Held(TypedDict):
    """What was held at a moment, by kind."""

    parameters_mb: float | None
    """Parameters, this rank's part of those that are divided."""
    gradients_mb: float | None
    """Their gradients."""
    optimizer_mb: float | None
    """What the optimizer keeps."""
    strategy_mb: float | None
    """What the strategy holds besides."""
    peak_mb: float | None
    """Peak memory of the process or device up to there; null where it cannot be told apart from that of other arms."""


class MemoryParts(TypedDict):
    """Means over the ranks that train, in their first step."""

    initialised: Held
    """With model, strategy and optimizer made."""
    before_step: Held
    """With gradients synchronised."""
    after_step: Held
    """Behind the optimizer's step."""
    activations_mb: float | None
    """What autograd saved for the backward pass of the largest micro-batch, parameters left out."""
    model_mb: float | None
    """All parameters that are trained, whole."""
    formula_mb: float | None
    """What the registry of strategies says is held between steps, gradients included."""


def memory_parts(merged: MergedRun) -> MemoryParts | None:
    """The `memory_parts` object of a summary; None where nothing was counted."""
    facts = merged.facts
    counted = facts.env.get("memory_parts")
    ranks = [rank for rank in counted if rank["rank"] >= facts.servers] if isinstance(counted, list) else []
    if not ranks:
        return None
    held = {moment: {kind: mean_over(ranks, f"{moment}.{kind}") for kind in Held.__annotations__} for moment in MOMENTS}
    whole = mean_over(ranks, "whole_mb")
    copies = copies_held(facts.config, ranks_of(facts.config, merged.world_size))
    formula = None if whole is None else copies * whole
    beside = {"activations_mb": mean_over(ranks, "activations_mb"), "model_mb": whole, "formula_mb": formula}
    return cast(MemoryParts, {**held, **beside})


def largest(merged: MergedRun, side: str, column: str) -> float | None:
    """Of a column over a side's ranks and measured steps; None where there are none, or it is not known."""
    peak = merged.measured_rows(side).select(pl.col(column).max()).collect().item()
    return None if peak is None else float(peak)


class MemoryOverRanks:
    """Spread of what ranks hold."""

    peak_mem_mb: Spread = spread(
        "peak_mem_mb",
        "peak memory",
        "MB",
        shown(MEMORY, "spread, mean", "", place=1),
        shown(MEMORY, "spread, P95", "", place=1),
    )
    """Of `peak_mem_mb`."""


class PeakMemory:
    """Allocated on a GPU, resident on a CPU."""

    max: float | None = measure(
        lambda at: number(at.steps["peak_mem_mb_max"].max()),
        shown(MEMORY, "peak memory", "peak memory, maximum over ranks and steps", "MB"),
    )
    """Over the ranks that train and steps."""
    servers_max: float | None = measure(
        lambda at: largest(at.run, "servers", "peak_mem_mb"),
        shown(MEMORY, "of servers", "peak memory of servers, maximum over steps", "MB"),
    )
    """Over those that serve them; null where none do."""


class ReservedMemory:
    """Held by the allocator on a GPU, resident on a CPU."""

    max: float | None = measure(lambda at: largest(at.run, "workers", "reserved_mem_mb"))
    """Over the ranks that train and steps."""


class Memory:
    """What ranks hold."""

    std_over_ranks: MemoryOverRanks
    """Standard deviation over ranks within a step."""
    peak_mem_mb: PeakMemory
    """Peak memory."""
    reserved_mem_mb: ReservedMemory
    """Memory that a rank's allocator held."""
    memory_parts: MemoryParts | None = measure(lambda at: memory_parts(at.run))
    """What a rank held of the model in its first step; null without `train.memory_parts`."""

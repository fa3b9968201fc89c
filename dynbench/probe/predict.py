"""What a calibrated cost model promises: the speedup of each policy on this data, and from which batch size it pays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import Problem
from dynbench.windows import whole_windows

POLICIES = ("partition", "prefix", "window")
WINDOW = 8
STEPS = 40
"""Optimizer steps of a prediction, in whole windows."""
LARGEST_BATCH = 4096
"""Global batches above it are tried only as far as `LEAST_PER_RANK` asks for, samples."""
LEAST_PER_RANK = 8
"""Samples per rank up to which global batches are tried, however many ranks there are."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From which global batch on scheduling pays."""

    batch: int | None
    """The smallest one tried that is predicted to gain; None if none is."""
    tried: tuple[int, ...]
    """What was compared until then, ascending; empty where nothing could be planned."""


def predicted_step_ms(policy: str, problem: Problem, overhead_ms: float) -> float | None:
    """Mean predicted step: the slowest rank's cost plus what every step pays alike; None where it cannot be planned."""
    # Whole windows, for all policies the same.
    steps = whole_windows(STEPS, (WINDOW,), len(problem.lengths) // problem.global_batch)
    try:
        planner = Planner(policy, problem)
        slowest = [step_cost(planner.plan(step), problem) for step in range(steps)]
    except (UsageError, NothingFits):
        return None
    return float(np.mean(slowest)) + overhead_ms


def predicted_speedups(problem: Problem, overhead_ms: float) -> dict[str, float | None]:
    """Static's predicted step over each policy's; None where either cannot be planned.

    Args:
        problem: with the measured cost model, the capacities found and the relative speeds.
        overhead_ms: time of a step outside the ranks' own work, such as the all-reduce.
    """
    static = predicted_step_ms("static", problem, overhead_ms)
    speedups: dict[str, float | None] = {}
    for policy in POLICIES:
        asked = replace(problem, window=WINDOW if policy == "window" else 1, buffer=problem.global_batch)
        planned = predicted_step_ms(policy, asked, overhead_ms)
        speedups[policy] = None if static is None or planned is None else static / planned
    return speedups


def break_even_batch(problem: Problem, overhead_ms: float, worth: float) -> BreakEven:
    """The smallest global batch at which `partition` is predicted to gain over `worth`.

    Tried are G, 2G, 4G, … samples, which `static` can deal equally whatever the number of ranks G, up to 4,096 (8 per
    rank where that is more) and to the size of the data.

    Args:
        problem: as in `predicted_speedups`; its capacities are left out, since they bound B for another reason.
        overhead_ms: as in `predicted_speedups`.
        worth: gain below which nothing counts as gained, a part (0.02 is 2 %).
    """
    ranks = problem.workers
    largest = min(len(problem.lengths), max(LARGEST_BATCH, LEAST_PER_RANK * ranks))
    tried: list[int] = []
    for global_batch in (ranks * 2**exponent for exponent in range((largest // ranks).bit_length())):
        asked = replace(problem, global_batch=global_batch, capacity=Capacity())
        static = predicted_step_ms("static", asked, overhead_ms)
        dynamic = predicted_step_ms("partition", asked, overhead_ms)
        if static is None or dynamic is None:
            continue
        tried.append(global_batch)
        if static / dynamic > 1.0 + worth:
            return BreakEven(global_batch, tuple(tried))
    return BreakEven(None, tuple(tried))

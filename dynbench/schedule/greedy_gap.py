"""How far greedy and naive counts are from the exact ones, on the buffers that `prefix` meets.

For costs that never fall with the count, greedy (the next sample to the rank whose next cost is least) reaches the
least maximum T: before it takes a cost above T, every rank holds all it can at T, and those are at least B. So its gap
in the maximum is zero and exact search adds the variance only, while naive counts have a gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dynbench.schedule.plan import FloatArray
from dynbench.schedule.prefix import Prefix
from dynbench.schedule.prefix_heuristics import HEURISTICS, gap


@dataclass(frozen=True, slots=True)
class GreedyGap:
    """Gaps step by step; in the units of `prefix_heuristics.gap`.

    Attributes:
        max_cost: per heuristic, shape [T].
        variance: per heuristic, shape [T]; NaN where the instance is too large for the exact variance.
    """

    max_cost: Mapping[str, FloatArray]
    variance: Mapping[str, FloatArray]

    def summary(self) -> dict[str, object]:
        """`greedy_gap` of `--json`: that of greedy, and the maximum's under the naive heuristics."""
        return {
            "max_cost": _distribution(self.max_cost["greedy"]),
            "variance": _distribution(self.variance["greedy"]),
            "naive_max_cost": {name: _distribution(gaps) for name, gaps in self.max_cost.items() if name != "greedy"},
            "steps": len(self.max_cost["greedy"]),
        }


def greedy_gap(policy: Prefix, steps: int, limit_s: float | None = None) -> GreedyGap:
    """Plans steps exactly and compares every heuristic's counts on the same buffers.

    Args:
        policy: `prefix` with any solver; the streams advance by the exact counts.
        steps: optimizer steps.
        limit_s: end early once this many seconds are spent; None never does.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in HEURISTICS}
    begin = time.perf_counter()
    batch = policy.problem.global_batch
    exact = policy if policy.problem.solver == "exact" else Prefix(replace(policy.problem, solver="exact"))
    for done, step in enumerate(exact.steps()):
        if done == steps or (done and limit_s is not None and time.perf_counter() - begin > limit_s):
            break
        for name, heuristic in HEURISTICS.items():
            largest, variance = gap(step.costs, heuristic(step.costs, batch), step.counts)
            pairs[name].append((largest, variance if step.plan.exact == "both" else np.nan))
    gaps = {name: np.array(found).T for name, found in pairs.items()}
    return GreedyGap({name: found[0] for name, found in gaps.items()}, {name: found[1] for name, found in gaps.items()})


def _distribution(gaps: FloatArray) -> dict[str, float] | None:
    """Mean, 95th percentile and maximum; None where no step has a value."""
    known = gaps[~np.isnan(gaps)]
    if not len(known):
        return None
    return {"mean": float(known.mean()), "p95": float(np.percentile(known, 95)), "max": float(known.max())}

"""What heuristics and other costs lose against exact plans.

For costs that never fall with the count, greedy (the next sample to the rank whose next cost is least) reaches the
least maximum T: before it takes a cost above T, every rank holds all it can at T, and those are at least B. So its gap
in the maximum is zero and exact search adds the variance only, while naive counts have a gap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import FloatArray
from dynbench.schedule.policy import Problem, make_policy
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


@dataclass(frozen=True, slots=True)
class CostTypeLine:
    """A policy that plans with one cost type, judged by another.

    Attributes:
        policy: who plans.
        cost_type: what it plans with.
        judge: what its plans are judged by.
        mean, p95: of the slowest rank's judged cost, over the steps.
    """

    policy: str
    cost_type: str
    judge: str
    mean: float
    p95: float


def compare_cost_types(
    problem: Problem, policies: Sequence[str], costs: Mapping[str, CostModel], steps: int
) -> Iterator[CostTypeLine]:
    """One line per policy, cost type and judge (`tokens`, and `measured` where its coefficients are known).

    Args:
        problem: data, ranks, capacities, speeds and seed; planned with one micro-batch per rank, step by step.
        policies: those that cannot plan this are left out.
        costs: cost type to model.
        steps: optimizer steps.
    """
    judges = {name: replace(problem, cost=costs[name]) for name in ("tokens", "measured") if name in costs}
    for policy in policies:
        for cost_type, cost in costs.items():
            try:
                planner = make_policy(policy, replace(problem, cost=cost, micro_batches=1, window=1))
                plans = list(islice(planner.plans(), steps))
            except (UsageError, NothingFits):
                continue
            for name, judge in judges.items():
                slowest = np.array([step_costs(plan, judge).max() for plan in plans])
                p95 = float(np.percentile(slowest, 95))
                yield CostTypeLine(policy, cost_type, name, float(slowest.mean()), p95)

"""Which cost to plan with: the same policy with every cost type, its plans judged by one and the same yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.policy import Problem, make_policy


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

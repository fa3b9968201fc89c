"""Costs that hardly tell plans apart, or not at all: every solver ends, and its plans keep the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from plan_rules import judge_plan

from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Planner, Problem, policy_class

COEFFICIENTS = [
    (0.0, 0.0, 0.0),
    (5.0, 0.0, 0.0),
    (5.0, 1e-300, 0.0),
    (0.0, 1e-320, 0.0),
    (1e300, 1e-9, 0.0),
    (1e6, 1e-18, 1e-30),
    (0.3, 0.0, 1e-17),
]
RANKS = 4
KINDS = ("equal", "speeds", "capacities", "classes")
TIMEOUT_S = 100


def problem_of(coefficients: tuple[float, float, float], kind: str, layout: Layout, **changes: object) -> Problem:
    alpha, beta, gamma = coefficients
    of_layout = Capacity if layout == "padded" else PackedCapacity
    tokens = 1 if layout == "padded" else 150
    unequal = {
        "equal": {},
        "speeds": {"speeds": np.array([1.0, 0.7, 1.0, 0.3])},
        "capacities": {"capacity": of_layout.per_rank([tokens * most for most in (8, 5, 4, 12)])},
        "classes": {
            "speeds": np.linspace(0.3, 1, RANKS),
            "capacity": of_layout.table([[(40, 9 * tokens), (400, 5 * tokens)]]),
        },
    }
    lengths = np.clip(np.random.default_rng(0).lognormal(3.2, 0.8, 160).astype(int), 1, 300)
    cost = CostModel("measured", alpha=alpha, beta=beta, gamma=gamma)
    return Problem(lengths, RANKS, 16, cost=cost, layout=layout, **(unequal[kind] | changes))


def plan_all(policy: str) -> None:
    """Plans of every cost and kind of ranks."""
    for coefficients in COEFFICIENTS:
        for kind in KINDS:
            variants: list[dict[str, object]] = [{"window": 2 if policy == "window" else 1}]
            if policy_class(policy).splits and policy != "window" and kind in ("equal", "speeds"):
                variants += [{"micro_batches": "auto"}, {"micro_batches": 2}]
            if policy == "prefix":
                variants += [{"solver": "enumerate"}, {"solver": "greedy"}]
            for changes in variants:
                problem = problem_of(coefficients, kind, POLICIES[policy].layouts[0], **changes)
                planner = Planner(policy, problem)
                for step in range(3):
                    plan = planner.plan(step)
                    fixed, capped = planner.policy.fixed_batch, POLICIES[policy].capped
                    judged = replace(problem, lengths=planner.policy.lengths)
                    judge_plan(plan, judged, fixed_batch=fixed, capped=capped)


@pytest.mark.slow
def test_every_policy_ends() -> None:
    """In a process of its own: what does not end is stopped, and the last policy that it printed is at fault."""
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    for name, entry in POLICIES.items():
        if not entry.missing:
            print(name, flush=True)
            plan_all(name)

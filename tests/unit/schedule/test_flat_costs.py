"""Costs that hardly tell plans apart, or not at all: every solver ends, and its plans keep the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plan_rules import judge_plan

from dynbench.plugins import POLICIES
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
TIMEOUT_S = 100


def problems(policy: str) -> Iterator[Problem]:
    """Every cost and kind of ranks, in every way that the policy plans."""
    layout = POLICIES[policy].layouts[0]
    of_layout, tokens = (Capacity, 1) if layout == "padded" else (PackedCapacity, 150)
    even: list[dict[str, object]] = [{}, {"speeds": np.array([1.0, 0.7, 1.0, 0.3])}]
    uneven = [
        {"capacity": of_layout.per_rank([tokens * most for most in (8, 5, 4, 12)])},
        {
            "speeds": np.linspace(0.3, 1, RANKS),
            "capacity": of_layout.table([[(40, 9 * tokens), (400, 5 * tokens)]]),
        },
    ]
    variants: list[dict[str, object]] = [{"window": 2 if policy == "window" else 1}]
    if policy == "prefix":
        variants += [{"solver": "enumerate"}, {"solver": "greedy"}]
    kinds = list(product(even + uneven, variants))
    if policy_class(policy).splits and policy != "window":
        kinds += product(even, [{"micro_batches": "auto"}, {"micro_batches": 2}])
    lengths = np.clip(np.random.default_rng(0).lognormal(3.2, 0.8, 160).astype(int), 1, 300)
    for (alpha, beta, gamma), (ranks, variant) in product(COEFFICIENTS, kinds):
        cost = CostModel("measured", alpha=alpha, beta=beta, gamma=gamma)
        yield Problem(lengths, RANKS, 16, cost=cost, layout=layout, **ranks, **variant)


def plan_all(policy: str) -> None:
    for problem in problems(policy):
        planner = Planner(policy, problem)
        judged = replace(problem, lengths=planner.policy.lengths)
        fixed, capped = planner.policy.fixed_batch, POLICIES[policy].capped
        for step in range(3):
            judge_plan(planner.plan(step), judged, fixed_batch=fixed, capped=capped)


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

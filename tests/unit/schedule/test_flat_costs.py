"""Costs that hardly tell plans apart, or not at all: every solver ends, and its plans keep the rules."""

from __future__ import annotations

import signal
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


@pytest.fixture
def ending() -> Iterator[None]:
    """What does not end is stopped."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"no end in {TIMEOUT_S} s"))
    signal.alarm(TIMEOUT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.missing is None])
def test_every_policy_ends(policy: str) -> None:
    for problem in problems(policy):
        planner = Planner(policy, problem)
        judged = replace(problem, lengths=planner.policy.lengths)
        for step in range(2):
            plan = planner.plan(step)
            judge_plan(plan, judged, fixed_batch=planner.policy.fixed_batch, capped=POLICIES[policy].capped)

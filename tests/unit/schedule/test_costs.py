"""Costs of nothing and of much, a second cost that is none, costs that hardly tell plans apart, and their bound."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_rules import COSTS, judge_plan, plain, plans_of, problem_of

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.evaluate import step_bound, step_costs
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Planner, Problem


@pytest.mark.parametrize("kind", get_args(CostType))
def test_nothing_costs_nothing(kind):
    cost = CostModel(kind, alpha=7.0, further=9.0)
    assert cost.surcharge == (2.0 if kind == "measured" else 0.0)
    assert cost.cost_padded(np.array([0, 1]), 4)[0] == 0 < cost.cost_padded(1, 4)
    assert cost.cost_packed(np.array([0, 1]), np.array([0, 1]))[0] == 0 < cost.cost_packed(1, 1)


@pytest.mark.parametrize(("kind", "tokens"), [("tokens", 2.0**33), ("tokens_sq", 2.0**66)])
def test_costs_are_floats_that_do_not_overflow_of_lengths_as_they_are_padded(kind, tokens):
    many = CostModel(kind).cost_packed(np.array([2**33]), np.array([2**40]))
    assert (many.tolist(), many.dtype) == ([tokens], np.float64)
    assert CostModel(kind).per_sample(np.array([4])).dtype == np.float64
    assert CostModel(kind, pad_to_multiple_of=8).cost(1, 9) == CostModel(kind).cost(1, 16)


PLANS = [name for name in plan_names("padded", "packed") if POLICIES[plan_of(name)[0]].missing is None]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 0.5, 1.0])], ids=["equal", "unequal"])
def test_what_costs_or_limits_nothing_changes_no_plan(name, speeds):
    rng = np.random.default_rng(2)
    policy, layout = plan_of(name)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(np.int64), 1, 200)
    cost, kind = CostModel("measured", alpha=9.0), Capacity if layout == "padded" else PackedCapacity
    without = Problem(lengths, 3, 24, cost, speeds=speeds, layout=layout, window=2)
    weightless = replace(without, second=rng.integers(0, 90, 120), second_weight=0.0)
    nothing = replace(without, second=np.zeros_like(lengths))
    roomy = replace(without, capacity=kind.table([[(32, None), (200, None)]]))
    alike = (without, weightless, nothing, roomy)
    expected, *others = (list(map(plain, plans_of(policy, each, 8))) for each in alike)
    assert others == [expected] * 3


COEFFICIENTS = [
    (0.0, 0.0, 0.0),
    (5.0, 0.0, 0.0),
    (5.0, 1e-300, 0.0),
    (0.0, 1e-320, 0.0),
    (1e300, 1e-9, 0.0),
    (1e6, 1e-18, 1e-30),
    (0.3, 0.0, 1e-17),
]
WAYS = {"prefix": [{"solver": name} for name in ("exact", "enumerate", "greedy")], "window": [{"window": 2}]}
"""In which a policy plans; others run one, two or as many micro-batches as need be."""
PARTS = [{"micro_batches": number} for number in (1, 2, "auto")]


def problems(policy: str) -> Iterator[Problem]:
    """Every cost and kind of ranks, in every way that the policy plans."""
    layout = POLICIES[policy].layouts[0]
    of_layout, tokens = (Capacity, 1) if layout == "padded" else (PackedCapacity, 150)
    ranks: list[dict[str, object]] = [
        {},
        {"speeds": np.array([1.0, 0.7, 1.0, 0.3])},
        {"capacity": of_layout.per_rank([tokens * most for most in (8, 5, 4, 12)])},
        {"speeds": np.linspace(0.3, 1, 4), "capacity": of_layout.table([[(40, 9 * tokens), (400, 5 * tokens)]])},
    ]
    lengths = np.clip(np.random.default_rng(0).lognormal(3.2, 0.8, 160).astype(int), 1, 300)
    for coefficients, kind, way in product(COEFFICIENTS, ranks, WAYS.get(policy, PARTS)):
        cost = CostModel("measured", **dict(zip(("alpha", "beta", "gamma"), coefficients, strict=True)))
        yield Problem(lengths, 4, 16, cost=cost, layout=layout, **kind, **way)


@pytest.fixture
def ending() -> Iterator[None]:
    """What does not end is stopped, and with it the process."""
    signal.alarm(100)
    yield
    signal.alarm(0)


@pytest.mark.slow
@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.missing is None])
def test_every_policy_ends(policy: str) -> None:
    for problem in problems(policy):
        try:
            planner = Planner(policy, problem)
        except UsageError:  # a combination that the policy refuses
            continue
        judged = replace(problem, lengths=planner.policy.lengths)
        for step in range(2):
            plan = planner.plan(step)
            judge_plan(plan, judged, fixed_batch=planner.policy.fixed_batch, capped=POLICIES[policy].capped)


FURTHER = CostModel("measured", alpha=3.0, beta=0.2, further=9.0)
PADDED = replace(FURTHER, further=0.0, pad_to_multiple_of=8, positions=45)


@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=12),
    st.sampled_from([*COSTS, FURTHER, PADDED]),
    st.sampled_from([None, np.full(3, 2.0), np.array([0.5, 1.0, 4.0])]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_no_random_plan_is_below_the_bound(lengths, cost, speeds, seed, packed):
    rng = np.random.default_rng(seed)
    problem = problem_of(lengths, 3, cost=cost, speeds=speeds)
    ids = rng.permutation(len(lengths))
    cuts = np.sort(rng.choice(np.arange(1, len(ids)), 2, replace=False))
    shares = tuple(tuple(np.array_split(part, rng.integers(1, len(part) + 1))) for part in np.split(ids, cuts))
    plan = StepPlan(0, shares, packed=packed)
    assert step_bound(plan, problem) <= step_costs(plan, problem).max() * (1 + 1e-12)


def test_the_bound_of_a_plan_by_hand():
    """Padded to 8, 4, 4, 4: three micro-batches at least, of which two pay 10 and one 3, or one each, which pay 10."""
    cost = CostModel("measured", alpha=10.0, further=3.0, pad_to_multiple_of=4)
    problem = Problem(np.array([8, 4, 4, 2]), 2, 4, cost, Capacity.table([[(4, 2), (8, 1)]]))
    first, rest = np.array([0]), np.array([1, 2, 3])
    split, whole = StepPlan(0, ((first,), (rest[:2], rest[2:]))), StepPlan(0, ((first,), (rest,)))
    assert step_bound(split, problem) == (10 + 10 + 3 + 20) / 2
    assert step_bound(whole, problem) == (10 + 10 + 20) / 2
    assert step_bound(split, replace(problem, capacity=Capacity())) == 20
    assert step_bound(split, replace(problem, speeds=np.array([2.0, 2.0]))) == 43 / 4


@pytest.mark.parametrize(("kind", "bound"), [("tokens", 10), ("tokens_sq", 100), ("attention", 60)])
def test_of_three_alike_some_rank_of_two_holds_two(kind, bound):
    rows = StepPlan(0, ((np.array([0]),), (np.array([1, 2]),)), packed=True)
    assert step_bound(rows, problem_of([5] * 3, cost=CostModel(kind, attention_a=1.0), layout="packed")) == bound


@pytest.mark.parametrize(("parts", "bound"), [(2, 13 + 4), ("auto", 13)])
def test_as_many_slots_as_are_asked_for_bound_a_step(parts, bound):
    """The dearest sample is in one of them; other capacities would let auto have one."""
    second = {"second": np.full(4, 3), "second_weight": 1.0}
    problem = problem_of([10, 1, 1, 1], micro_batches=parts, objective="slots", **second)
    assert (
        step_bound(StepPlan(0, tuple((np.array([rank]), np.array([rank + 2])) for rank in range(2))), problem) == bound
    )

"""Costs and bounds by hand; a second cost per sample; costs that hardly tell plans apart, or not at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plan_rules import first_plan, judge_plan, plain, plans_of, problem_of, total_cost

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import plan_names, plan_of
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import batch_bound, largest_fitting, packed_bound, step_bound, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Planner, Problem, make_policy, policy_class

MEASURED = CostModel("measured", alpha=7.0, beta=2.0, gamma=0.5)
OTHERS = {"alpha": 5.0, "beta": 3.0, "gamma": 2.0}
"""What only a measured cost says."""


@pytest.mark.parametrize(
    ("cost", "padded", "sample", "packed"),
    [
        (CostModel("tokens"), 12.0, 4.0, 9.0),
        (CostModel("tokens", **OTHERS), 12.0, 4.0, 9.0),
        (CostModel("tokens_sq"), 144.0, 4.0, 81.0),
        (CostModel("tokens_sq", **OTHERS), 144.0, 4.0, 81.0),
        (CostModel("attention", attention_a=0.5), 12 + 0.5 * 48, 4 + 0.5 * 16, 9 + 0.5 * 29),
        (CostModel("attention"), 12 + 0.001 * 48, 4 + 0.001 * 16, 9 + 0.001 * 29),
        (MEASURED, 7 + 24 + 24.0, 8 + 8.0, 7 + 18 + 14.5),
        (CostModel("measured"), 12.0, 4.0, 9.0),
    ],
)
def test_three_samples_of_at_most_four_tokens(cost, padded, sample, packed):
    assert float(cost.cost_padded(3, 4)) == padded
    assert float(cost.cost(3, 4)) == padded
    assert float(cost.per_sample(4)) == sample
    assert float(cost.cost_packed(9, 16 + 9 + 4)) == packed
    assert cost.cost_padded(np.array([[1], [3]]), np.array([4, 5])).shape == (2, 2)


@pytest.mark.parametrize("cost", [CostModel("tokens"), CostModel("tokens_sq"), CostModel("attention"), MEASURED])
def test_nothing_costs_nothing(cost):
    assert cost.cost_padded(np.array([0, 1]), 4)[0] == 0 < cost.cost_padded(1, 4)
    assert cost.cost_packed(np.array([0, 1]), np.array([0, 1]))[0] == 0 < cost.cost_packed(1, 1)


def test_lengths_are_rounded_up_but_never_beyond_what_the_model_takes():
    cost = CostModel("tokens", pad_to_multiple_of=8, positions=20)
    assert cost.padded(np.array([1, 8, 9, 17])).tolist() == [8, 8, 16, 20]
    assert float(cost.cost(2, 9)) == 32
    assert float(cost.cost_padded(2, 9)) == 18


def test_a_rank_pays_alpha_once_and_the_price_of_every_further_micro_batch():
    priced = CostModel("measured", alpha=7.0, further=3.0)
    assert priced.surcharge == -4
    assert priced.of_rank([20.0, 20.0], [1, 3]).tolist() == [20, 12]
    assert MEASURED.of_rank(20.0, 3) == 20
    assert CostModel("tokens", alpha=7.0, further=3.0).of_rank(20.0, 3) == 20


@pytest.mark.parametrize(("kind", "tokens"), [("tokens", 2.0**33), ("tokens_sq", 2.0**66)])
def test_costs_are_floats_that_do_not_overflow(kind, tokens):
    cost = CostModel(kind)
    many = cost.cost_packed(np.array([2**33]), np.array([2**40]))
    assert (many.tolist(), many.dtype) == ([tokens], np.float64)
    assert cost.per_sample(np.array([4, 2])).dtype == np.float64


PLANS = [name for name in plan_names("padded", "packed") if POLICIES[plan_of(name)[0]].missing is None]


@pytest.mark.parametrize("name", PLANS)
def test_what_costs_nothing_changes_no_plan(name):
    rng = np.random.default_rng(2)
    policy, layout = plan_of(name)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(np.int64), 1, 200)
    without = Problem(lengths, 3, 24, CostModel("measured", alpha=9.0), layout=layout, window=2)
    weightless = replace(without, second=rng.integers(0, 90, 120), second_weight=0.0)
    nothing = replace(without, second=np.zeros_like(lengths))
    expected, *others = (list(map(plain, plans_of(policy, each, 8))) for each in (without, weightless, nothing))
    assert others == [expected, expected]


@pytest.mark.parametrize(
    ("policy", "layout", "changes"),
    [
        ("partition", "packed", {"speeds": np.array([1.0, 1.0, 0.5, 2.0])}),
        ("partition", "padded", {"capacity": Capacity.per_rank([40, 40, 40, 60])}),
        ("window", "padded", {"window": 4}),
    ],
    ids=["speeds", "capacities", "window"],
)
def test_plans_that_know_of_it_are_shorter(policy, layout, changes):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 0.8, 1280).astype(np.int64), 4, 512)
    second = np.where(rng.random(1280) < 0.3, rng.integers(50, 800, 1280), 0)
    judge = Problem(lengths, 4, 64, layout=layout, second=second, **changes)
    knows, blind = (plans_of(policy, problem, 20) for problem in (judge, replace(judge, second=None)))
    assert total_cost(knows, judge) < 0.85 * total_cost(blind, judge)


def test_unequal_capacities_are_kept_and_the_largest_batch_that_fits_is_found():
    second, capacity = np.array([90, 0, 0, 0, 0, 0, 0, 50]), Capacity.per_rank([2, 6])
    problem = problem_of([9, 8, 7, 6, 5, 4, 3, 2], second=second, capacity=capacity)
    assert first_plan("partition", problem).local_batches == (2, 6)
    narrow = replace(problem, capacity=Capacity.per_rank([2, 3]))
    with pytest.raises(NothingFits):
        first_plan("partition", narrow)
    assert largest_fitting("partition", narrow, 1).global_batch == 5


@pytest.mark.parametrize(("changes", "message"), [
    ({"second": np.array([1, 2])}, "second: shape"),
    ({"second": np.array([1, -2, 3])}, "from -2"),
    ({"second": np.array([1, 2, 3]), "second_weight": -1.0}, "second_weight"),
    ({"second": np.array([1, 2, 3]), "second_weight": float("nan")}, "second_weight"),
])  # fmt: skip
def test_numbers_that_are_no_cost_are_refused(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        problem_of([3, 2, 1], 1, **changes)
    assert caught.value.hint


def test_pieces_of_samples_have_no_second_number():
    problem = problem_of([5] * 40, 2, 8, layout="packed", second=np.arange(40))
    with pytest.raises(UsageError, match="pieces") as caught:
        make_policy("torchtitan", problem)
    assert caught.value.hint


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
        {"speeds": np.linspace(0.3, 1, RANKS), "capacity": of_layout.table([[(40, 9 * tokens), (400, 5 * tokens)]])},
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
    """What does not end is stopped, and with it the process."""
    signal.alarm(TIMEOUT_S)
    yield
    signal.alarm(0)


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


LENGTHS = (3, 5, 2, 8, 4, 4)
PLAN = StepPlan(4, ((np.array([0, 1]), np.array([2])), (np.array([3, 4, 5]),)))


def test_facts_of_a_plan_by_hand():
    facts = step_facts(PLAN, problem_of(LENGTHS, speeds=np.array([1.0, 2.0])))
    assert facts.padded_tokens.tolist() == [12, 24]
    assert facts.real_tokens.tolist() == [10, 16]
    assert facts.local_batches.tolist() == [3, 3]
    assert facts.costs.tolist() == [12, 12]
    assert (facts.max_cost, facts.variance) == (12, 0)
    padded = problem_of(LENGTHS, cost=CostModel("attention", attention_a=1.0, pad_to_multiple_of=64))
    facts = step_facts(replace(PLAN, packed=True), padded)
    assert facts.padded_tokens.tolist() == facts.real_tokens.tolist() == [10, 16]
    assert facts.costs.tolist() == [10 + 9 + 25 + 4, 16 + 64 + 16 + 16]


TOKENS, SQUARED = CostModel("tokens"), CostModel("tokens_sq")
PAID = CostModel("measured", alpha=10.0)
THIRDS = pytest.approx((16 / 3) ** 2)


@pytest.mark.parametrize(
    ("lengths", "cost", "workers", "changes", "bound"),
    [
        ([10, 3, 3, 3], TOKENS, 2, {}, 10),
        ([10, 3, 3, 3], TOKENS, 1, {}, 19),
        ([5, 5, 5], TOKENS, 2, {}, 8),
        ([5, 5, 5], SQUARED, 2, {}, 64),
        ([3, 4], SQUARED, 1, {}, 49),
        ([4, 4], CostModel("measured", alpha=2, beta=1, gamma=0.5), 2, {}, 2 + 4 + 8),
        ([50, 1], PAID, 2, {}, 60),
        ([7] * 12, CostModel("attention"), 3, {}, pytest.approx(4 * (7 + 0.049))),
        ([6, 6], TOKENS, 2, {"speeds": np.array([3.0, 1.0])}, 3),
        ([9, 1], SQUARED, 2, {"speeds": np.array([2.0, 2.0])}, 81 / 2),
        ([8, 8], SQUARED, 2, {"speeds": np.array([4.0, 1.0])}, THIRDS),
        ([9, 1, 1, 1], SQUARED, 4, {"micro_batches": 2}, 81),
        ([5, 5, 5, 5], SQUARED, 2, {"micro_batches": 4}, 100 / 2),  # one by one
        ([5] * 12, PAID, 2, {"micro_batches": 3}, 10 + 30),
        ([5] * 12, PAID, 2, {"micro_batches": 3, "limits": np.full(12, 2)}, 30 + 30),
        ([5] * 12, replace(PAID, further=4.0), 2, {"micro_batches": 3, "limits": np.full(12, 2)}, 10 + 2 * 4 + 30),
    ],
)
def test_bounds_of_padded_batches_by_hand(lengths, cost, workers, changes, bound):
    assert batch_bound(np.array(lengths), cost, workers, **changes) == bound


@pytest.mark.parametrize(
    ("lengths", "cost", "workers", "changes", "bound"),
    [
        ([6, 5, 5], TOKENS, 2, {}, 10),  # two of the three are on one rank
        ([6, 5, 5], SQUARED, 2, {}, 100),
        ([6, 5, 5], CostModel("tokens", alpha=3.0), 2, {}, 10),  # which only `measured` pays
        ([6, 5, 5], CostModel("measured", alpha=3.0), 2, {}, 13),
        ([6, 5, 5], TOKENS, 3, {}, 6),
        ([6, 5], TOKENS, 2, {}, 6),
        ([6, 5, 5], TOKENS, 2, {"speeds": np.array([2.0, 2.0])}, 5),
        ([6, 5, 5], TOKENS, 2, {"speeds": np.array([2.0, 1.0])}, 16 / 3),
        ([6, 4], TOKENS, 1, {"speeds": np.array([2.0])}, 5),
        ([6, 5, 5], SQUARED, 2, {"micro_batches": 2}, (36 + 25 + 25) / 2),  # a rank may run them one by one
        ([5] * 5, TOKENS, 2, {}, 15),  # three of the five are on one rank
        ([9, 4, 4, 4, 4], TOKENS, 2, {}, 13),  # the mean
        ([5] * 12, PAID, 2, {"micro_batches": 3, "limits": np.full(12, 10)}, 30 + 30),
    ],
)
def test_bounds_of_packed_rows_by_hand(lengths, cost, workers, changes, bound):
    assert packed_bound(np.array(lengths), cost, workers, **changes) == bound


def test_the_bound_of_a_plan_by_hand():
    """Padded to 8, 4, 4, 4: three micro-batches at least, of which two pay 10 and one 3, or one each, which pay 10."""
    cost = CostModel("measured", alpha=10.0, further=3.0, pad_to_multiple_of=4)
    capacity = Capacity.table([[(4, 2), (8, 1)]])
    problem = Problem(np.array([8, 4, 4, 2]), 2, 4, cost=cost, capacity=capacity)
    first, rest = np.array([0]), np.array([1, 2, 3])
    split, whole = StepPlan(0, ((first,), (rest[:2], rest[2:]))), StepPlan(0, ((first,), (rest,)))
    assert step_bound(split, problem) == (10 + 10 + 3 + 20) / 2
    assert step_bound(whole, problem) == (10 + 10 + 20) / 2
    assert step_bound(split, replace(problem, capacity=Capacity())) == 20
    assert step_bound(split, replace(problem, speeds=np.array([2.0, 2.0]))) == 43 / 4
    tokens = replace(problem, cost=replace(cost, cost_type="tokens"), capacity=Capacity())
    assert step_bound(whole, tokens) == 10
    assert step_bound(replace(whole, packed=True), tokens) == 9, "which is not padded"
    alike = StepPlan(0, ((np.array([0, 1]),), (np.array([2]),)), packed=True)
    assert step_bound(alike, problem_of([5, 5, 5])) == 10, "two of the three are on one rank"
    squares = replace(tokens, cost=replace(cost, cost_type="tokens_sq"))
    assert (step_bound(whole, squares), step_bound(split, squares)) == (100, 64)

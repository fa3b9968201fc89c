"""Plans of several micro-batches per rank, for both objectives: against every plan there is, and against the sampler of
transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from brute_force import micro_batch_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import COSTS, first_plan, heavy_tailed, judge_plan, plans_of, problem_of, total_cost

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem
from dynbench.schedule.traces import built_in_trace

OBJECTIVES = ("sum", "slots")
PRICED = CostModel("measured", alpha=7.5, beta=0.3, further=2.0)
CAPACITIES = {
    "padded": (Capacity(), Capacity.uniform(3), Capacity.table([[(12, 4), (30, 2)]])),
    "packed": (PackedCapacity(), PackedCapacity.uniform(40), PackedCapacity.table([[(12, 60), (30, 35)]])),
}
SHAPES = ((2, 2), (2, 3), (3, 2), (1, 3), (3, 1))
"""Ranks and micro-batches of each."""
SECOND = (0, 0, 3, 8, 40, 41, 90, 200)
UNEQUAL = np.array([1.0, 2.0, 0.5])


@cache
def groupings(samples: int, number: int) -> np.ndarray:
    """The micro-batch of each sample in all ways to make so many, in order of their first samples."""
    ways = [way for way in product(range(number), repeat=samples) if len(set(way)) == number]
    return np.array([way for way in ways if sorted(range(number), key=way.index) == list(range(number))])


def least(problem: Problem, ragged: bool = False) -> float:
    """The shortest step of all there are; `ragged` ranks run different numbers of micro-batches."""
    ranks, parts = problem.workers, problem.micro_batches
    number, speeds, surcharge = ranks * parts, problem.relative_speeds(), problem.cost.surcharge
    ways = groupings(len(problem.lengths), number)
    costs = np.stack([micro_batch_costs(problem, ways == group) for group in range(number)], axis=1)
    best = np.inf
    for way in product(range(ranks), repeat=number) if ragged else set(permutations([*range(ranks)] * parts)):
        owners = np.array(way)
        if len(set(way)) < ranks:
            continue
        own = [costs[:, owners == rank] for rank in range(ranks)]
        if problem.objective == "sum":
            times = [
                (each.sum(axis=1) + (each.shape[1] - 1) * surcharge) / v for each, v in zip(own, speeds, strict=True)
            ]
            best = min(best, float(np.max(times, axis=0).min()))
            continue
        price = np.r_[0.0, np.full(parts - 1, surcharge)]
        for orders in product(*[list(permutations(range(parts)))] * ranks):
            slots = [(each[:, order] + price) / v for each, order, v in zip(own, orders, speeds, strict=True)]
            best = min(best, float(np.max(slots, axis=0).sum(axis=1).min()))
    return best


@st.composite
def tiny(draw: st.DrawFn, layout: str) -> Problem:
    workers, parts = draw(st.sampled_from(SHAPES))
    most = 8 if workers * parts < 6 else 7
    lengths = draw(st.lists(st.integers(1, 30), min_size=workers * parts, max_size=most))
    return problem_of(
        lengths,
        workers,
        cost=draw(st.sampled_from((*COSTS, PRICED))),
        capacity=draw(st.sampled_from(CAPACITIES[layout])),
        speeds=draw(st.sampled_from([None, np.full(workers, 2.0), UNEQUAL[:workers]])),
        micro_batches=parts,
        objective=draw(st.sampled_from(OBJECTIVES)),
        layout=layout,
        second=draw(st.sampled_from([None, np.array(draw(st.permutations(SECOND)))[: len(lengths)]])),
        second_weight=0.75,
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_plan_of_few_samples_is_shorter_and_the_bound_is_below(layout, data):
    problem = data.draw(tiny(layout))
    ragged = problem.objective == "sum" and layout == "padded" and not problem.equal_ranks and problem.micro_batches > 1
    if ragged and problem.workers * problem.micro_batches > 4:
        return
    best = least(problem, ragged)
    if best == np.inf:
        with pytest.raises(NothingFits):
            first_plan("partition", problem)
        return
    plan = first_plan("partition", problem)
    judge_plan(plan, problem, range(len(problem.lengths)))
    assert step_cost(plan, problem) == pytest.approx(best, rel=1e-9)
    assert step_facts(plan, problem).bound <= best * (1 + 1e-9)
    assert plan.exact != "none"


def slots_of(plan: StepPlan) -> int:
    """Micro-batches of every rank alike."""
    (number,) = {len(share) for share in plan.shares}
    return number


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 1.0, 0.5, 2.0])], ids=["equal", "unequal"])
@pytest.mark.parametrize("cost", [*COSTS[2:], PRICED], ids=["tokens_sq", "attention", "measured", "measured further"])
def test_slots_give_every_rank_as_many_and_each_objective_is_served_best_by_its_own_plans(layout, speeds, cost):
    same = {"micro_batches": 4, "layout": layout, "speeds": speeds, "cost": cost}
    problems = {objective: Problem(heavy_tailed(640), 4, 64, objective=objective, **same) for objective in OBJECTIVES}
    plans = {objective: plans_of("partition", problem, 10) for objective, problem in problems.items()}
    for plan in plans["slots"]:
        judge_plan(plan, problems["slots"])
        assert slots_of(plan) == 4
    own_slots, other_slots = (total_cost(plans[objective], problems["slots"]) for objective in ("slots", "sum"))
    own_sum, other_sum = (total_cost(plans[objective], problems["sum"]) for objective in ("sum", "slots"))
    assert own_slots < other_slots
    if (layout, cost.cost_type) != ("packed", "tokens_sq"):  # whose rows are dealt as if each rank ran one
        assert own_sum <= other_sum * (1 + 1e-3)


@pytest.mark.parametrize(
    ("trace", "objective", "of_8_ranks", "of_2_ranks"),
    [
        ("sst2", "sum", 0.913, 0.948),
        ("sst2", "slots", 0.974, 0.971),
        ("gsm8k", "sum", 0.946, 0.975),
        ("gsm8k", "slots", 0.988, 0.99),
        ("lognormal", "sum", 0.899, 0.938),
        ("lognormal", "slots", 0.972, 0.961),
    ],
)
def test_plans_are_shorter_than_those_of_the_sampler_of_transformers(trace, objective, of_8_ranks, of_2_ranks):
    """By its own cost; of GSM8K in 16 micro-batches the least padded work that there is takes 0.973 of theirs."""
    lengths, cost = built_in_trace(trace).lengths, CostModel("attention")
    for ranks, parts, most in ((8, 4, of_8_ranks), (2, 8, of_2_ranks)):
        problem = Problem(lengths, ranks, ranks * parts * 4, cost, micro_batches=parts, objective=objective)
        dealt = (plans_of(name, problem, 12) for name in ("partition", "hf_batch_rebalance"))
        ours, theirs = (total_cost(plans, problem) for plans in dealt)
        assert ours <= most * theirs


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 0.5])], ids=["equal", "unequal"])
def test_auto_weighs_the_price_of_micro_batches_against_padding(speeds, objective):
    numbers = []
    auto = Problem(heavy_tailed(320), 2, 32, speeds=speeds, micro_batches="auto", objective=objective)
    for alpha in (0.0, 50.0, 1e5):
        problem = replace(auto, cost=CostModel("measured", alpha=alpha))
        plans = plans_of("partition", problem, 5)
        numbers.append(sum(len(share) for plan in plans for share in plan.shares))
        for fixed in (1, 2, 3, 4, 6):
            others = plans_of("partition", replace(problem, micro_batches=fixed), 5)
            assert total_cost(plans, problem) <= 1.006 * total_cost(others, problem)
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 2 * 10
    assert numbers[-1] == 10


@pytest.mark.parametrize(
    ("lengths", "workers", "capacity", "said", "hint"),
    [
        ([5] * 6, 4, Capacity.uniform(1), "6 samples do not fit", "4 fit"),
        ([40] * 5, 2, PackedCapacity.uniform(40), "5 samples of 200 tokens do not fit", ""),
    ],
    ids=["padded", "packed"],
)
def test_slots_that_not_every_rank_can_fill_are_refused(lengths, workers, capacity, said, hint):
    layout = "padded" if type(capacity) is Capacity else "packed"
    ragged = problem_of(lengths, workers, capacity=capacity, micro_batches="auto", layout=layout)
    with pytest.raises(NothingFits, match=said) as caught:
        first_plan("partition", replace(ragged, objective="slots"))
    assert hint in caught.value.hint
    judge_plan(first_plan("partition", ragged), ragged)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_windows_of_several_micro_batches_gain_over_partition(objective):
    problem = Problem(heavy_tailed(64 * 8), 4, 64, window=8, micro_batches=4, objective=objective)
    ours, alone = (total_cost(plans_of(name, problem, 8), problem) for name in ("window", "partition"))
    assert ours < 0.99 * alone


def test_rows_are_dealt_with_the_price_of_each():
    same = {"capacity": PackedCapacity.uniform(1200), "speeds": np.array([1.0, 1.0, 0.5, 2.0]), "layout": "packed"}
    free, problem = (
        Problem(heavy_tailed(640), 4, 64, CostModel("measured", alpha=alpha), micro_batches="auto", **same)
        for alpha in (0.0, 300.0)
    )
    priced, unpriced = (total_cost(plans_of("partition", each, 10), problem) for each in (problem, free))
    assert priced < 0.955 * unpriced


@pytest.mark.parametrize(
    ("cost", "bound"),
    [
        (CostModel(), 9 + 5 + 2),
        (CostModel("tokens_sq"), 81 + 25 + 4),
        (CostModel("measured", alpha=10.0, further=3.0), 16 + 10 + 3 + 3),
    ],
    ids=lambda given: getattr(given, "cost_type", None),
)
def test_the_bound_of_slots_by_hand(cost, bound):
    problem = problem_of([9, 7, 5, 4, 2, 1], cost=cost, micro_batches=3, objective="slots")
    facts = step_facts(first_plan("partition", problem), problem)
    assert facts.bound == facts.max_cost == bound


@pytest.mark.parametrize("alpha", [20.0, 100.0])
def test_windows_run_the_number_of_micro_batches_that_is_best_at_their_price(alpha):
    cost = CostModel("measured", alpha=alpha)
    auto = Problem(heavy_tailed(64 * 8), 4, 64, cost, window=8, micro_batches="auto")
    found = total_cost(plans_of("window", auto, 8), auto)
    for fixed in (1, 2, 4, 8):
        assert found < total_cost(plans_of("window", replace(auto, micro_batches=fixed), 8), auto)

"""Plans of several micro-batches per rank, for both objectives: against every plan there is, against other numbers of
micro-batches, and against the sampler of transformers."""

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
from dynbench.schedule.accumulation import Accumulation, cheapest
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost, step_facts
from dynbench.schedule.micro_batches import _gains_little
from dynbench.schedule.policy import Problem
from dynbench.schedule.traces import built_in_trace

OBJECTIVES = ("sum", "slots")
PRICED = CostModel("measured", alpha=7.5, beta=0.3, further=2.0)
CAPACITIES = {
    "padded": (Capacity(), Capacity.uniform(3), Capacity.table([[(12, 4), (30, 2)]])),
    "packed": (PackedCapacity(), PackedCapacity.uniform(40), PackedCapacity.table([[(20, 60), (30, 35)]])),
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        *(("partition", {"objective": objective}) for objective in OBJECTIVES),
        *(("partition", {"objective": objective, "speeds": np.array([1.0, 0.5])}) for objective in OBJECTIVES),
        ("window", {"window": 5}),
    ],
    ids=str,
)
def test_auto_weighs_the_price_of_micro_batches_against_padding(policy, changes):
    numbers, auto = [], Problem(heavy_tailed(320), 2, 32, micro_batches="auto", **changes)
    for price in ({"alpha": 0.0}, {"alpha": 5.0, "further": 80.0}, {"alpha": 1e5}):
        problem = replace(auto, cost=CostModel("measured", **price))
        plans = plans_of(policy, problem, 5)
        numbers.append(sum(len(share) for plan in plans for share in plan.shares))
        for fixed in (1, 2, 3, 4, 6):
            others = plans_of(policy, replace(problem, micro_batches=fixed), 5)
            assert total_cost(plans, problem) <= 1.006 * total_cost(others, problem)
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 2 * 10
    assert numbers[-1] == 10


def test_auto_may_give_ranks_unequal_numbers_of_micro_batches():
    problem = problem_of([34, 4, 39, 33], cost=CostModel("measured", alpha=10.0), micro_batches="auto")
    plan = first_plan("partition", problem)
    assert (step_cost(plan, problem), sum(map(len, plan.shares))) == (78, 3)


def test_many_are_tried_until_the_last_four_numbers_gained_less_than_a_hundredth_together():
    tried = ([1.0] * 8, [1.0] * 7, [1.0] * 7 + [0.98], [2.0] * 4 + [1.0] * 4, [2.0] * 4 + [1.0] * 5)
    assert [_gains_little(reached) for reached in tried] == [True, False, False, False, True]


@pytest.mark.parametrize(("objective", "each"), [("sum", None), ("sum", 2), ("slots", 2)])
@pytest.mark.parametrize("speeds", [np.full(3, 2.0), UNEQUAL], ids=["alike", "unequal"])
def test_no_way_to_deal_micro_batches_is_shorter(objective, each, speeds):
    meets, rng = Accumulation(objective, speeds, 13.0), np.random.default_rng(1)
    if each is None:
        ways = [
            [np.flatnonzero(np.equal(way, rank)).tolist() for rank in range(3)] for way in product(range(3), repeat=6)
        ]
        ways = [way for way in ways if all(way)]
    else:
        ways = [np.reshape(way, (3, 2)).tolist() for way in permutations(range(6))]
    for _ in range(3):
        costs = rng.integers(1, 40, (4, 6)).astype(float)
        split, dealt = cheapest(costs, meets, each)
        least = min(meets.lasts(costs, way).min() for way in ways)
        assert meets.lasts(costs[split : split + 1], dealt)[0] == pytest.approx(least)


def test_contiguous_deals_of_samples_with_a_second_cost_are_not_said_to_be_the_best():
    problem = problem_of(range(1, 10), 2, micro_batches=2)
    priced = replace(problem, second=np.arange(9))
    assert [first_plan("partition", each).exact for each in (problem, priced)] == ["maximum", "none"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_waits_for_the_micro_batches_that_take_longest_at_their_ranks_speeds(objective):
    rng = np.random.default_rng(5)
    for _ in range(100):
        numbers = rng.integers(1, 5, 3) if objective == "sum" else np.full(3, 4)
        costs, speeds = rng.integers(1, 30, numbers.sum()).astype(float), rng.permutation([0.5, 1.0, 1.7])
        dealt = [own.tolist() for own in np.split(rng.permutation(numbers.sum()), np.cumsum(numbers)[:-1])]
        meets = Accumulation(objective, speeds, 11.0)
        found = meets.critical(costs, dealt)
        paid = costs[found] + 11.0 * (np.arange(len(found)) > 0)
        ranks = [rank for number in found for rank, own in enumerate(dealt) if number in own]
        assert (paid / speeds[ranks]).sum() == pytest.approx(meets.lasts(costs[None], dealt)[0])

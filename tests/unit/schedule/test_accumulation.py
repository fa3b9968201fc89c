"""Plans of several micro-batches per rank, for both objectives: against every plan there is, and against the sampler of
transformers."""

from __future__ import annotations

from functools import cache
from itertools import combinations, islice, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan
from unit.schedule.test_packed import heavy_tailed

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost, step_costs, step_facts
from dynbench.schedule.partition_search import group_costs, least_total
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace

OBJECTIVES = ("sum", "slots")
COSTS = (
    CostModel("tokens"),
    CostModel("tokens", pad_to_multiple_of=8),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.05),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
    CostModel("measured", alpha=7.5, beta=0.3, further=2.0),
)
PADDED = (Capacity(), Capacity.uniform(3), Capacity.table([[(12, 4), (30, 2)]]))
PACKED = (PackedCapacity(), PackedCapacity.uniform(40), PackedCapacity.table([[(12, 60), (30, 35)]]))
SHAPES = ((2, 2), (2, 3), (3, 2), (1, 3), (3, 1))
"""Ranks and micro-batches of each."""
SECOND = (0, 0, 3, 8, 40, 41, 90, 200)
UNEQUAL = np.array([1.0, 2.0, 0.5])


@cache
def groupings(samples: int, number: int) -> np.ndarray:
    """The micro-batch of each sample in all ways to make so many, in order of their first samples."""
    found = np.array(list(product(range(number), repeat=samples)))
    first = np.array(
        [[list(way).index(group) if group in way else samples for group in range(number)] for way in found]
    )
    return found[(np.diff(first, axis=1) > 0).all(axis=1) & (first[:, -1] < samples)]


def costs_of_all(problem: Problem, number: int) -> np.ndarray:
    """Cost of each micro-batch in all ways to make so many, infinite above the capacity, shape [ways, number]."""
    columns = []
    for group in range(number):
        held = groupings(len(problem.lengths), number) == group
        longest = np.where(held, problem.padded_lengths, 0).max(axis=1)
        tokens, squares = (held * problem.lengths).sum(axis=1), (held * problem.lengths**2).sum(axis=1)
        count, packed = held.sum(axis=1), problem.packed
        cost = problem.cost.cost_packed(tokens, squares) if packed else problem.cost.cost_padded(count, longest)
        if problem.second is not None:
            cost = with_second(cost, (held * problem.second).sum(axis=1) * problem.second_weight, problem.cost)
        fits = (tokens if packed else count) <= problem.capacity.limits_of(0, longest)
        columns.append(np.where(fits, cost, np.inf))
    return np.stack(columns, axis=1)


def with_second(cost: np.ndarray, extra: np.ndarray, model: CostModel) -> np.ndarray:
    """What micro-batches cost with so many tokens more, which attend to nothing."""
    if model.cost_type == "tokens_sq":
        return (np.sqrt(cost) + extra) ** 2
    return cost + extra * (model.beta if model.cost_type == "measured" else 1.0)


def least(problem: Problem, ragged: bool = False) -> float:
    """The shortest step of all there are; `ragged` ranks run different numbers of micro-batches."""
    ranks, parts = problem.workers, problem.micro_batches
    number, speeds, surcharge = ranks * parts, problem.relative_speeds(), problem.cost.surcharge
    costs, best = costs_of_all(problem, number), np.inf
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
            slots = [each[:, order] for each, order in zip(own, orders, strict=True)]
            times = np.stack([(each + price) / v for each, v in zip(slots, speeds, strict=True)])
            best = min(best, float(times.max(axis=0).sum(axis=1).min()))
    return best


def tiny(draw, layout: str) -> Problem:
    workers, parts = draw(st.sampled_from(SHAPES))
    most = 8 if workers * parts < 6 else 7
    lengths = np.array(draw(st.lists(st.integers(1, 30), min_size=workers * parts, max_size=most)))
    return Problem(
        lengths,
        workers,
        len(lengths),
        cost=draw(st.sampled_from(COSTS)),
        capacity=draw(st.sampled_from(PADDED if layout == "padded" else PACKED)),
        speeds=draw(st.sampled_from([None, np.full(workers, 2.0), UNEQUAL[:workers]])),
        order="file",
        micro_batches=parts,
        objective=draw(st.sampled_from(OBJECTIVES)),
        layout=layout,
        second=draw(st.sampled_from([None, np.array(draw(st.permutations(SECOND)))[: len(lengths)]])),
        second_weight=0.75,
    )


def planned(problem: Problem, policy: str = "partition") -> StepPlan:
    return next(make_policy(policy, problem).plans())


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_plan_of_few_samples_is_shorter_and_the_bound_is_below(layout, data):
    problem = tiny(data.draw, layout)
    ragged = problem.objective == "sum" and layout == "padded" and not problem.equal_ranks and problem.micro_batches > 1
    if ragged and problem.workers * problem.micro_batches > 4:
        return
    best = least(problem, ragged)
    if best == np.inf:
        with pytest.raises(NothingFits):
            planned(problem)
        return
    plan = planned(problem)
    judge_plan(plan, problem, range(len(problem.lengths)))
    assert step_cost(plan, problem) == pytest.approx(best, rel=1e-9)
    assert step_facts(plan, problem).bound <= best * (1 + 1e-9)
    assert plan.exact != "none"


def total(policy: str, problem: Problem, judge: Problem, steps: int) -> float:
    """What the first steps of a policy's plans for a problem last by another's objective."""
    return sum(step_cost(plan, judge) for plan in islice(make_policy(policy, problem).plans(), steps))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("speeds", [None, np.array([1.0, 1.0, 0.5, 2.0])], ids=["equal", "unequal"])
@pytest.mark.parametrize("cost", COSTS[2:], ids=["tokens_sq", "attention", "measured", "measured further"])
def test_slots_give_every_rank_as_many_and_each_objective_is_served_best_by_its_own_plans(layout, speeds, cost):
    lasts = {}
    problems = {
        objective: Problem(
            heavy_tailed(640), 4, 64, cost, speeds=speeds, micro_batches=4, objective=objective, layout=layout
        )
        for objective in OBJECTIVES
    }
    for plan in islice(make_policy("partition", problems["slots"]).plans(), 5):
        judge_plan(plan, problems["slots"])
        assert {len(share) for share in plan.shares} == {4}
        facts = step_facts(plan, problems["slots"])
        assert facts.bound <= facts.max_cost
        assert facts.max_cost >= step_costs(plan, problems["slots"]).max() * (1 - 1e-12)
    for planned_for, judged_by in product(OBJECTIVES, repeat=2):
        lasts[planned_for, judged_by] = total("partition", problems[planned_for], problems[judged_by], 10)
    assert lasts["slots", "slots"] < lasts["sum", "slots"]
    if (layout, cost.cost_type) != ("packed", "tokens_sq"):  # whose rows are dealt as if each rank ran one
        assert lasts["sum", "sum"] <= lasts["slots", "sum"] * (1 + 1e-3)


def least_padded_work(lengths: np.ndarray, problem: Problem) -> float:
    """Of all ways to make a step's micro-batches."""
    falling = np.sort(lengths)[::-1]
    costs = group_costs(problem.cost, falling, np.arange(len(falling), 0, -1))
    sizes = np.array(least_total(costs, problem.workers * problem.micro_batches))
    return float(problem.cost.cost(sizes, falling[np.cumsum(sizes) - sizes]).sum())


@pytest.mark.parametrize(("ranks", "parts"), [(8, 4), (2, 8)])
@pytest.mark.parametrize("trace", ["sst2", "gsm8k", "lognormal"])
def test_plans_are_no_longer_than_those_of_the_sampler_of_transformers(trace, ranks, parts):
    """By its own cost. With one synchronisation a step, 0.97 of theirs, or within 0.5 % of the least padded work of
    so many micro-batches, which is 0.973 of theirs for GSM8K in 16.
    """
    lengths = built_in_trace(trace).lengths
    for objective, most in (("sum", 0.97), ("slots", 1.0)):
        problem = Problem(
            lengths, ranks, ranks * parts * 4, CostModel("attention"), micro_batches=parts, objective=objective
        )
        ours, theirs = (total(name, problem, problem, 12) for name in ("partition", "hf_batch_rebalance"))
        if objective == "sum":
            plans = islice(make_policy("partition", problem).plans(), 12)
            work = sum(least_padded_work(lengths[plan.sample_ids()], problem) for plan in plans)
            most = max(most, 1.005 * work / ranks / theirs)
        assert ours <= most * theirs


def test_a_step_of_slots_lasts_as_long_as_the_slowest_of_each():
    cost = CostModel("measured", alpha=2.0, beta=1.0, further=5.0)
    lengths = np.array([9, 4, 6, 3, 2, 1])
    plan = StepPlan(0, ((np.array([0]), np.array([1])), (np.array([2, 3]), np.array([4, 5]))))
    problem = Problem(lengths, 2, 6, cost, micro_batches=2, objective="slots")
    # Padded 9 beside 12, 4 beside 4; the first pay 2 each, the second ones 5.
    assert step_cost(plan, problem) == 12 + 2 + 4 + 5
    assert step_facts(plan, problem).max_cost == 12 + 2 + 4 + 5
    assert step_facts(plan, problem).costs.tolist() == [9 + 2 + 4 + 5, 12 + 2 + 4 + 5]
    slower = Problem(lengths, 2, 6, cost, micro_batches=2, objective="slots", speeds=np.array([0.5, 1.0]))
    assert step_cost(plan, slower) == (9 + 2) / 0.5 + (4 + 5) / 0.5


def test_a_long_sample_makes_its_slot_long_and_no_other():
    lengths = np.r_[900, np.full(35, 100)]
    for layout in ("padded", "packed"):
        problem = Problem(lengths, 2, 36, order="file", micro_batches=4, objective="slots", layout=layout)
        plan = planned(problem)
        # 900 beside 900, and of the 26 others thirteen on each rank in three slots.
        assert step_cost(plan, problem) == 900 + 1300
        assert step_facts(plan, problem).bound <= 2200


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_auto_runs_as_many_slots_as_the_capacities_ask_for(layout):
    capacity = Capacity.table([[(100, 8), (1024, 2)]]) if layout == "padded" else PackedCapacity.uniform(1500)
    problem = Problem(
        heavy_tailed(640), 4, 64, capacity=capacity, micro_batches="auto", objective="slots", layout=layout
    )
    numbers = set()
    for plan in islice(make_policy("partition", problem).plans(), 10):
        judge_plan(plan, problem)
        (number,) = {len(share) for share in plan.shares}
        numbers.add(number)
    assert min(numbers) > 1


@pytest.mark.parametrize("speeds", [None, np.array([1.0, 0.5])], ids=["equal", "unequal"])
def test_auto_weighs_the_price_of_slots_against_padding(speeds):
    numbers = []
    for alpha in (0.0, 50.0, 1e5):
        problem = Problem(
            heavy_tailed(320), 2, 32, CostModel("measured", alpha=alpha), speeds=speeds, micro_batches="auto",
            objective="slots",
        )  # fmt: skip
        plans = list(islice(make_policy("partition", problem).plans(), 5))
        assert all(len({len(share) for share in plan.shares}) == 1 for plan in plans)
        numbers.append(np.mean([len(plan.shares[0]) for plan in plans]))
        lasts = sum(step_cost(plan, problem) for plan in plans)
        for fixed in (1, 2, 4):
            other = Problem(problem.lengths, 2, 32, problem.cost, speeds=speeds, micro_batches=fixed, objective="slots")
            assert lasts <= 1.01 * total("partition", other, problem, 5)
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 2
    assert numbers[-1] == 1


def test_slots_that_not_every_rank_can_fill_are_refused():
    problem = Problem(np.full(6, 5), 4, 6, capacity=Capacity.uniform(1), micro_batches="auto", objective="slots")
    with pytest.raises(NothingFits, match="6 samples do not fit") as caught:
        planned(problem)
    assert "4 fit" in caught.value.hint
    judge_plan(planned(Problem(np.full(6, 5), 4, 6, capacity=Capacity.uniform(1), micro_batches="auto")), problem)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cost", [CostModel(), CostModel("attention"), COSTS[-1]], ids=lambda cost: cost.cost_type)
def test_windows_are_no_longer_than_partition_nor_shorter_than_any_window(objective, cost):
    for seed in range(4):
        lengths = np.random.default_rng(seed).integers(2, 60, 10)
        problem = Problem(lengths, 2, 5, cost, order="file", window=2, micro_batches=2, objective=objective)
        ours, alone = (total(name, problem, problem, 2) for name in ("window", "partition"))
        halves = [
            least(Problem(lengths[list(half)], 2, 5, cost, micro_batches=2, objective=objective))
            for half in combinations(range(10), 5)  # the other half of the first is the last, and so on
        ]
        best = min(half + other for half, other in zip(halves, reversed(halves), strict=True))
        assert best * (1 - 1e-12) <= ours <= alone * (1 + 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_windows_of_several_micro_batches_gain_over_partition(objective):
    problem = Problem(heavy_tailed(64 * 8), 4, 64, window=8, micro_batches=4, objective=objective)
    ours, alone = (total(name, problem, problem, 8) for name in ("window", "partition"))
    assert ours < 0.99 * alone


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_packed_rows_of_several_per_rank_nearly_reach_their_bound(objective):
    problem = Problem(heavy_tailed(2048), 4, 128, micro_batches=4, objective=objective, layout="packed")
    facts = [step_facts(plan, problem) for plan in islice(make_policy("partition", problem).plans(), 10)]
    assert sum(f.max_cost for f in facts) <= 1.01 * sum(f.bound for f in facts)


def test_the_bound_of_slots_by_hand():
    lengths = np.array([9, 7, 5, 4, 2, 1])
    one_by_one = Problem(lengths, 2, 6, micro_batches=3, objective="slots", order="file")
    assert step_facts(planned(one_by_one), one_by_one).bound == 9 + 5 + 2 == step_cost(planned(one_by_one), one_by_one)
    squared = Problem(lengths, 2, 6, CostModel("tokens_sq"), micro_batches=3, objective="slots", order="file")
    assert step_facts(planned(squared), squared).bound == 81 + 25 + 4
    paid = Problem(
        lengths, 2, 6, CostModel("measured", alpha=10.0, further=3.0), micro_batches=3, objective="slots", order="file"
    )
    assert step_facts(planned(paid), paid).bound == 16 + 10 + 3 + 3

"""A second cost per sample: every policy of the registry against all plans of few samples, and plans without it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout, plan_names, plan_of
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting, step_costs, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy

PLANS = [name for name in plan_names("padded", "packed") if POLICIES[plan_of(name)[0]].missing is None]
CUTS = "torchtitan"
COSTS = (
    CostModel("tokens", pad_to_multiple_of=4),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.05),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
)
SPEEDS = (None, np.array([1.0, 2.0, 0.5]))


@st.composite
def few_samples(draw, layout: Layout) -> Problem:
    """One global batch of up to 8 samples on up to 3 ranks."""
    workers = draw(st.integers(1, 3))
    size = draw(st.sampled_from([n for n in range(workers, 9) if n % workers == 0]))
    speeds = draw(st.sampled_from(SPEEDS))
    return Problem(
        np.array(draw(st.lists(st.integers(1, 30), min_size=size, max_size=size))),
        workers,
        size,
        draw(st.sampled_from(COSTS)),
        speeds=None if speeds is None else speeds[:workers],
        order="file",
        layout=layout,
        second=np.array(draw(st.lists(st.sampled_from([0, 0, 3, 8, 40, 200]), min_size=size, max_size=size))),
        second_weight=draw(st.sampled_from([0.75, 1.0, 3.0])),
    )


@cache
def every_deal(samples: int, ranks: int) -> list[tuple[int, ...]]:
    """The rank of each sample in all deals that leave no rank idle."""
    return [way for way in product(range(ranks), repeat=samples) if len(set(way)) == ranks]


def by_hand(problem: Problem, ids: list[int]) -> float:
    """The cost of one micro-batch."""
    model, lengths = problem.cost, [int(problem.padded_lengths[i]) for i in ids]
    extra = problem.second_weight * sum(int(problem.second[i]) for i in ids)
    each = lengths if problem.packed else [max(lengths)] * len(ids)
    tokens, squares = sum(each) + extra, sum(length**2 for length in each)
    return {
        "tokens": tokens,
        "tokens_sq": tokens**2,
        "attention": tokens + model.attention_a * squares,
        "measured": model.alpha + model.beta * tokens + model.gamma * squares,
    }[model.cost_type]


def least_maximum(problem: Problem) -> float:
    """Of all deals of one micro-batch per rank."""
    size, speeds = len(problem.lengths), problem.relative_speeds()
    return min(
        max(by_hand(problem, [i for i in range(size) if way[i] == rank]) / speed for rank, speed in enumerate(speeds))
        for way in every_deal(size, problem.workers)
    )


def first_plan(name: str, problem: Problem) -> StepPlan:
    return next(make_policy(plan_of(name)[0], problem).plans())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLANS if CUTS not in name])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_bound_is_below_every_deal_and_what_is_said_to_be_exact_is_the_best(name, data):
    problem = data.draw(few_samples(plan_of(name)[1]))
    try:
        plan = first_plan(name, problem)
    except UsageError as error:
        assert "less than a row" in error.message
        return
    for share, cost in zip(plan.shares, step_costs(plan, problem) * problem.relative_speeds(), strict=True):
        assert cost == pytest.approx(sum(by_hand(problem, ids.tolist()) for ids in share))
    facts = step_facts(plan, problem)
    assert facts.bound <= facts.max_cost * (1 + 1e-12)
    if sorted(plan.sample_ids().tolist()) != list(range(len(problem.lengths))) or max(map(len, plan.shares)) > 1:
        return  # other samples, or other micro-batches, than those that are dealt in every way
    best = least_maximum(problem)
    assert facts.bound <= best * (1 + 1e-12)
    assert facts.max_cost >= best * (1 - 1e-12)
    if plan_of(name)[0] in ("partition", "window"):
        assert plan.exact != "none"
        assert facts.max_cost == pytest.approx(best)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("nothing", [{"second_weight": 0.0}, {"second": np.zeros(120, dtype=np.int64)}])
def test_what_costs_nothing_changes_no_plan(name, nothing):
    rng = np.random.default_rng(2)
    policy, layout = plan_of(name)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(np.int64), 1, 200)
    without = Problem(lengths, 3, 24, CostModel("measured", alpha=9.0), layout=layout, window=2)
    second = replace(without, **{"second": rng.integers(0, 90, 120), **nothing})
    of_both = [list(islice(make_policy(policy, problem).plans(), 8)) for problem in (without, second)]
    assert len({str(plans) for plans in of_both}) == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(st.permutations(range(8)), st.sampled_from(["padded", "packed"]), st.sampled_from(COSTS))
def test_the_order_of_the_samples_does_not_change_what_a_step_lasts(order, layout, cost):
    lengths, second = np.array([30, 30, 21, 14, 9, 5, 2, 1]), np.array([0, 60, 5, 0, 33, 90, 12, 1])
    lasts = {
        round(step_facts(first_plan("partition", problem), problem).max_cost, 9)
        for places in (np.arange(8), np.array(order))
        for problem in [Problem(lengths[places], 3, 8, cost, order="file", layout=layout, second=second[places])]
    }
    assert len(lasts) == 1


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("changes", [
    {},
    {"speeds": np.array([1.0, 1.0, 0.5, 2.0])},
    {"capacity": Capacity.per_rank([40, 40, 40, 60])},
    {"micro_batches": 4},
    {"micro_batches": 4, "objective": "slots"},
    {"window": 4},
], ids=["one", "unequal speeds", "unequal capacities", "sum", "slots", "window"])  # fmt: skip
def test_plans_that_know_of_it_are_shorter(layout, changes):
    if layout == "packed" and changes.keys() & {"capacity", "window"}:
        pytest.skip("of padded batches")
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 0.8, 1280).astype(np.int64), 4, 512)
    second = np.where(rng.random(1280) < 0.3, rng.integers(50, 800, 1280), 0)
    judge = Problem(lengths, 4, 64, layout=layout, second=second, **changes)
    policy = "window" if "window" in changes else "partition"
    knows, blind = (
        sum(step_facts(plan, judge).max_cost for plan in islice(make_policy(policy, problem).plans(), 20))
        for problem in (judge, replace(judge, second=None))
    )
    assert knows < 0.85 * blind


def test_unequal_capacities_are_kept_and_the_largest_batch_that_fits_is_found():
    lengths, second = np.array([9, 8, 7, 6, 5, 4, 3, 2]), np.array([90, 0, 0, 0, 0, 0, 0, 50])
    problem = Problem(lengths, 2, 8, order="file", second=second, capacity=Capacity.per_rank([2, 6]))
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
        Problem(np.array([3, 2, 1]), 1, 3, **changes)
    assert caught.value.hint


def test_pieces_of_samples_have_no_second_number():
    problem = Problem(np.full(40, 5), 2, 8, layout="packed", second=np.arange(40))
    with pytest.raises(UsageError, match="pieces") as caught:
        make_policy(CUTS, problem)
    assert caught.value.hint


def test_a_bound_that_counted_padding_of_the_second_number_would_be_seen(monkeypatch):
    """The fault: what is added up per sample taken for something that is padded to the largest."""
    problem = Problem(np.array([4, 4, 4, 4]), 2, 4, order="file", second=np.array([100, 0, 0, 0]))
    assert step_facts(first_plan("partition", problem), problem).bound <= least_maximum(problem) == 104
    own = CostModel.per_sample
    monkeypatch.setattr(CostModel, "per_sample", lambda self, length, extra=0.0: own(self, length, np.max(extra)))
    assert step_facts(first_plan("static", problem), problem).bound > least_maximum(problem)

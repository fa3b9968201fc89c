"""Packed rows: against brute force where that is possible, against the bound where it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import PlanError, judge_plan

from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, plan_name, plan_names, plan_of
from dynbench.schedule.balancing import Search, Work, exchanged
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting, packed_bound, step_costs, step_facts
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.traces import built_in_trace

COSTS = (
    CostModel("tokens", pad_to_multiple_of=64),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.03),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
)
CAPACITIES = (
    PackedCapacity(),
    PackedCapacity.uniform(45),
    PackedCapacity.per_rank([30, 60]),
    PackedCapacity.table([[(10, 60), (20, 45), (30, 35)]]),
    PackedCapacity.table([[(30, 70)], [(12, 50)]]),
)


def packed(lengths, workers, batch=None, **changes) -> Problem:
    lengths = np.asarray(lengths, dtype=np.int64)
    return Problem(lengths, workers, batch or len(lengths), **{"order": "file", "layout": "packed", **changes})


def first(policy: str, problem: Problem) -> StepPlan:
    return next(make_policy(policy, problem).plans())


def rows(plan: StepPlan, problem: Problem) -> list[list[list[int]]]:
    """Lengths per rank and row."""
    return [[problem.lengths[row].tolist() for row in share] for share in plan.shares]


def heavy_tailed(n: int, seed: int = 0, high: int = 1024) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(5, 1, n).astype(np.int64), 16, high)


@cache
def ways(samples: int, ranks: int) -> np.ndarray:
    """Every way to give each sample a rank without leaving one idle, shape [ways, samples]."""
    found = np.array(list(product(range(ranks), repeat=samples)))
    return found[[len(set(way)) == ranks for way in found.tolist()]]


def least(problem: Problem) -> float | None:
    """Least maximum of one row per rank over all deals; None where nothing fits."""
    deals = ways(len(problem.lengths), problem.workers)
    slowest, fits = np.zeros(len(deals)), np.ones(len(deals), dtype=bool)
    for rank, speed in enumerate(problem.relative_speeds()):
        mine = deals == rank
        tokens, squares = (mine * problem.lengths).sum(axis=1), (mine * problem.lengths**2).sum(axis=1)
        slowest = np.maximum(slowest, problem.cost.cost_packed(tokens, squares) / speed)
        fits &= tokens <= problem.capacity.limits_of(rank, np.where(mine, problem.lengths, 0).max(axis=1))
    return float(slowest[fits].min()) if fits.any() else None


@pytest.mark.slow
@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=3, max_size=8),
    workers=st.integers(2, 3),
    cost=st.sampled_from(COSTS),
    capacity=st.sampled_from(CAPACITIES),
    speeds=st.sampled_from([None, [1.0, 2.0, 0.5]]),
)
def test_few_samples_are_dealt_as_well_as_can_be_and_what_fits_is_found(lengths, workers, cost, capacity, speeds):
    if len(capacity.rows) > 1:
        workers = 2
    speed = None if speeds is None else np.array(speeds[:workers])
    problem = packed(lengths, workers, cost=cost, capacity=capacity, speeds=speed)
    best = least(problem)
    if best is None:
        with pytest.raises(NothingFits):
            first("partition", problem)
        return
    plan = first("partition", problem)
    judge_plan(plan, problem, range(len(lengths)))
    assert plan.exact == ("maximum" if cost.cost_type == "tokens_sq" else "both")
    assert step_costs(plan, problem).max() == pytest.approx(best, rel=1e-9)
    assert step_facts(plan, problem).bound <= best * (1 + 1e-9)


def test_the_search_finds_what_longest_first_and_exchanges_miss():
    """Its judge: a search that is not allowed to look at anything proves nothing."""
    weights = np.array([46.0, 39, 27, 26, 16, 13, 10])
    work = Work(weights, weights.astype(np.int64), np.ones(3), np.zeros(3))
    search = Search(work, np.inf, 59.0)
    assert search.best is not None
    assert (work.peak(search.best), search.proven) == (62.0, True)


def test_a_search_that_is_cut_short_proves_nothing(monkeypatch):
    monkeypatch.setattr("dynbench.schedule.balancing.NODES", 3)
    weights = np.array([46.0, 39, 27, 26, 16, 13, 10])
    assert not Search(Work(weights, weights.astype(np.int64), np.ones(3), np.zeros(3)), np.inf, 59.0).proven


def test_three_alike_on_two_ranks_are_known_to_be_as_good_as_can_be():
    assert packed_bound(np.array([5, 5, 5]), CostModel(), 2) == 10
    assert first("partition", packed([5] * 25, 12)).exact == "both"


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.cost_type)
def test_packed_rows_have_no_padding_and_nearly_reach_their_bound(cost):
    problem = Problem(heavy_tailed(4_000), 8, 128, cost=cost, layout="packed")
    for plan in islice(make_policy("partition", problem).plans(), 10):
        facts = step_facts(plan, problem)
        assert facts.padded_tokens.tolist() == facts.real_tokens.tolist()
        assert facts.bound <= facts.max_cost <= 1.005 * facts.bound


@pytest.mark.parametrize(
    ("trace", "most"), [("sst2", 1.002), ("lognormal", 1.002), ("gsm8k", 1.004)], ids=["sst2", "lognormal", "gsm8k"]
)
@pytest.mark.parametrize(("workers", "batch"), [(4, 32), (8, 64), (16, 256)])
def test_from_eight_samples_a_rank_on_the_bound_is_met_within_a_part_of_a_percent(trace, most, workers, batch):
    problem = Problem(built_in_trace(trace).lengths, workers, batch, layout="packed")
    facts = [step_facts(plan, problem) for plan in islice(make_policy("partition", problem).plans(), 25)]
    assert sum(f.max_cost for f in facts) <= most * sum(f.bound for f in facts)


@pytest.mark.parametrize(("cost_type", "gap"), [("tokens", 1e-5), ("attention", 6e-5)])
def test_two_hundred_random_batches_are_well_below_a_ten_thousandth_of_the_bound(cost_type, gap):
    problem = Problem(heavy_tailed(200 * 256), 8, 256, cost=CostModel(cost_type), layout="packed")
    facts = [step_facts(plan, problem) for plan in islice(make_policy("partition", problem).plans(), 200)]
    assert sum(f.max_cost for f in facts) <= (1 + gap) * sum(f.bound for f in facts)


def test_rows_are_filled_exactly_where_they_can_be():
    plan = first("partition", problem := packed([4, 5, 6, 7, 8, 3, 2, 1], 3))
    assert [sum(row) for (row,) in rows(plan, problem)] == [12, 12, 12]
    assert plan.exact == "both"


def test_faster_ranks_get_longer_rows():
    problem = packed(heavy_tailed(400), 2, speeds=np.array([3.0, 1.0]))
    facts = step_facts(first("partition", problem), problem)
    assert facts.real_tokens[0] / facts.real_tokens[1] == pytest.approx(3, rel=0.001)


def test_exchanges_never_make_the_slowest_rank_slower_and_keep_to_the_limits():
    rng, loosened = np.random.default_rng(1), []
    for seed in range(30):
        lengths = np.sort(heavy_tailed(60, seed, 400))[::-1]
        owners = np.resize(np.arange(4), 60)
        most = int(np.bincount(owners, lengths).max())
        limits = np.tile(np.where(lengths > 200, most, 2 * most), (4, 1))
        work = Work(lengths.astype(float), lengths, rng.choice([1.0, 2.0], 4), np.full(4, 30.0), limits, least=3)
        before, free = work.peak(owners), exchanged(work, owners, 0.0, limited=False)
        held = exchanged(work, owners, 0.0)
        assert work.fits(owners)
        assert work.fits(held)
        assert max(work.peak(free), work.peak(held)) <= before
        loosened.append(not work.fits(free))
        assert np.bincount(held).min() >= 3
    assert any(loosened), "the limits matter"


def test_a_capacity_counts_tokens_by_the_longest_sample():
    capacity = PackedCapacity.table([[(10, 40), (20, 30)]])
    problem = packed([20, 9, 9, 9, 9, 9], 2, capacity=capacity)
    plan = first("partition", problem)
    assert sorted(sorted(row) for (row,) in rows(plan, problem)) == [[9, 9, 9, 9], [9, 20]]
    assert step_facts(plan, problem).capacity_violations == 0
    over = StepPlan(0, ((np.arange(5),), (np.array([5]),)), packed=True)
    assert step_facts(over, problem).capacity_violations == 1
    with pytest.raises(PlanError, match="rank 0 runs 56 tokens at length 20, its capacity is 30"):
        judge_plan(over, problem)


def test_rows_as_many_as_the_capacity_asks_for_and_no_more():
    problem = packed([12] * 10, 2, capacity=PackedCapacity.uniform(25), micro_batches="auto")
    assert [[len(row) for row in share] for share in rows(first("partition", problem), problem)] == [[2, 2, 1]] * 2
    roomy = replace(problem, capacity=PackedCapacity.uniform(60))
    assert [len(share) for share in first("partition", roomy).shares] == [1, 1]
    with pytest.raises(BatchTooLarge, match="10 samples of 120 tokens do not fit into 2 packed rows"):
        first("partition", replace(problem, micro_batches=1))


def test_the_price_of_further_rows_is_dealt_with():
    """A long sample fills a row, so the rank of two runs a row more; what that costs is taken off its short ones."""
    capacity = PackedCapacity.table([[(5, 200), (40, 40)]])
    cost = CostModel("measured", alpha=1.0, beta=1.0, further=30.0)
    problem = packed([40, 40, 40] + [5] * 24, 2, cost=cost, capacity=capacity, micro_batches="auto")
    free = replace(problem, cost=replace(cost, further=0.0))
    priced, unpriced = first("partition", problem), first("partition", free)
    assert step_costs(unpriced, problem).max() == 120 + 1 + 2 * 30
    assert step_costs(priced, problem).max() <= 105 + 1 + 2 * 30


def test_a_fixed_number_of_rows_is_run_by_every_rank():
    problem = packed([100, *[3] * 11], 3, micro_batches=2)
    plan = first("partition", problem)
    assert [len(share) for share in plan.shares] == [2, 2, 2]
    assert sorted(plan.sample_ids()) == list(range(12))
    with pytest.raises(UsageError, match="Use at most 3"):
        make_policy("partition", packed([1] * 9, 3, micro_batches=4))


@pytest.mark.parametrize("policy", ["static", "partition"])
def test_a_sample_longer_than_any_row_is_named(policy):
    problem = packed([5, 6, 50, 7], 2, capacity=PackedCapacity.uniform(40), micro_batches="auto")
    with pytest.raises(NothingFits, match="sample 2 of 50 tokens is longer than a packed row of"):
        first(policy, problem)


def test_static_packs_equal_counts_in_the_order_of_arrival():
    problem = packed([9, 1, 8, 2, 7, 3, 6, 4], 2)
    assert rows(first("static", problem), problem) == [[[9, 8, 7, 6]], [[1, 2, 3, 4]]]
    split = replace(problem, capacity=PackedCapacity.uniform(17), micro_batches="auto")
    assert rows(first("static", split), split) == [[[9, 8], [7, 6]], [[1, 2, 3, 4]]]
    with pytest.raises(BatchTooLarge, match="4 samples of 30 tokens"):
        first("static", replace(split, micro_batches=1))


@pytest.mark.parametrize("policy", ["static", "partition"])
@pytest.mark.parametrize("parts", [1, "auto"])
def test_whether_a_run_fits_is_what_planning_meets(policy, parts):
    for seed in range(6):
        lengths = heavy_tailed(150, seed, 300)
        capacity = PackedCapacity.table([[(100, 900), (280, 700)]])
        problem = packed(lengths, 3, 18, seed=seed, order="shuffle", capacity=capacity, micro_batches=parts)
        misfit = make_policy(policy, problem).misfit(20)
        try:
            list(islice(make_policy(policy, problem).plans(), 20))
        except NothingFits as error:
            assert misfit is not None
            assert misfit.message == error.message
            if isinstance(error, BatchTooLarge):
                found = largest_fitting(policy, problem, 20)
                assert found is not None
                fitting = replace(problem, global_batch=found.global_batch)
                assert make_policy(policy, fitting).misfit(20) is None
        else:
            assert misfit is None


@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if "packed" not in entry.layouts])
def test_a_policy_that_needs_padding_is_refused_by_name(policy):
    with pytest.raises(UsageError, match=f"'packed' makes no sense under policy '{policy}'") as caught:
        make_policy(policy, packed([1, 2], 2))
    assert "static or partition" in caught.value.hint


@pytest.mark.parametrize(
    ("layout", "capacity"), [("packed", Capacity.uniform(4)), ("padded", PackedCapacity.uniform(4))]
)
def test_capacities_of_the_other_layout_are_refused(layout, capacity):
    with pytest.raises(UsageError, match=f"in {capacity.unit}, with micro-batches that are {layout}"):
        packed([1, 2], 2, layout=layout, capacity=capacity)


def test_names_of_plans_and_what_they_mean():
    assert plan_name("partition", "packed") == "packed"
    assert plan_names("packed", in_train=True) == ("static packed", "packed", "token_budget packed")
    assert plan_names("padded", in_train=True) == tuple(name for name in POLICIES if POLICIES[name].in_train)
    for layout in LAYOUTS:
        for name in plan_names(layout):
            policy, found = plan_of(name)
            assert (plan_name(policy, found), found) == (name, layout)

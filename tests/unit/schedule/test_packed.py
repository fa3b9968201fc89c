"""Packed rows: ours against their bound and capacities, and the packers of others against what those answered."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import COSTS, first_plan, heavy_tailed, judge_plan, plain, plans_of, problem_of, taken
from upstream_packing import UPSTREAM

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, plan_name, plan_names, plan_of
from dynbench.schedule.balancing import SEARCHED
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost, step_facts
from dynbench.schedule.measure import run_policy
from dynbench.schedule.peers.base import row_tokens
from dynbench.schedule.peers.row_peers import best_fit_decreasing, first_fit
from dynbench.schedule.peers.token_budget import TokenBudget
from dynbench.schedule.plan import FloatArray
from dynbench.schedule.policy import BatchPolicy, Coverage, Problem, make_policy
from dynbench.schedule.traces import built_in_trace


@pytest.mark.parametrize(
    ("trace", "workers", "batch", "changes", "most"),
    [
        *(("heavy", 8, 128, {"cost": cost}, 1.005) for cost in COSTS[1:]),
        *(("heavy", 4, 128, {"micro_batches": 4, "objective": objective}, 1.01) for objective in ("sum", "slots")),
        *(
            (trace, *size, {}, most)
            for trace, most in (("sst2", 1.002), ("lognormal", 1.002), ("gsm8k", 1.004))
            for size in ((4, 32), (8, 64), (16, 256))
        ),
    ],
    ids=str,
)
def test_the_bound_is_nearly_met_without_padding(
    trace: str, workers: int, batch: int, changes: dict[str, object], most: float
) -> None:
    lengths = heavy_tailed(2048) if trace == "heavy" else built_in_trace(trace).lengths
    problem = Problem(lengths, workers, batch, layout="packed", **changes)
    facts = [step_facts(plan, problem) for plan in plans_of("partition", problem, 15)]
    for step in facts:
        assert step.padded_tokens.tolist() == step.real_tokens.tolist()
        assert step.bound <= step.max_cost
    assert sum(step.max_cost for step in facts) <= most * sum(step.bound for step in facts)


def test_ranks_of_more_rows_get_less_where_each_row_has_its_price() -> None:
    """It lasts 259 where the price of rows is not looked at."""
    lengths = [11, 35, 33, 40, 20, 9, 46, 38, 50, 39, 39, 43, 16, 15, 29, 16, 56]
    cost, capacity = CostModel("measured", alpha=20.0), PackedCapacity.uniform(70)
    problem = problem_of(lengths, 3, cost=cost, capacity=capacity, layout="packed", micro_batches="auto")
    assert step_cost(first_plan("partition", problem), problem) == 245


def test_rows_are_as_best_fit_leaves_them_where_rows_alike_are_beyond_the_budget() -> None:
    capacity = PackedCapacity.uniform(12)
    problem = problem_of([10, 10, 7, 6, 5, 3, 3, 1], capacity=capacity, layout="packed", order="file")
    rows = [sorted(ids.tolist()) for plan in plans_of("token_budget", problem, 2) for (ids,) in plan.shares]
    assert sorted(rows) == [[0, 7], [1], [2, 4], [3, 5, 6]]
    lost = make_policy("token_budget", problem_of([10] * 3, 2, 2, capacity=capacity, layout="packed")).coverage.lost
    assert lost == 1


def test_names_of_plans_and_what_they_mean() -> None:
    assert plan_name("partition", "packed") == "packed"
    assert plan_names("packed", in_train=True) == ("static packed", "packed", "token_budget packed")
    assert plan_names("padded", in_train=True) == tuple(name for name in POLICIES if POLICIES[name].in_train)
    for layout in LAYOUTS:
        for name in plan_names(layout):
            policy, found = plan_of(name)
            assert (plan_name(policy, found), found) == (name, layout)


@pytest.mark.parametrize("speeds", [None, np.array([1.0, 3.0, 2.0])], ids=["equal", "unequal"])
@pytest.mark.parametrize("cost", COSTS[1:], ids=lambda cost: cost.cost_type)
def test_what_is_said_to_be_proven_is_what_meets_its_bound(cost: CostModel, speeds: FloatArray | None) -> None:
    """Of samples of one digit many deals meet it, of long ones few do."""
    said = set()
    for seed, longest in product(range(6), (4, 900)):
        lengths = np.random.default_rng(seed).integers(1, longest + 1, SEARCHED + 1 + 3 * seed)
        problem = problem_of(lengths, 3, layout="packed", cost=cost, speeds=speeds)
        plan = first_plan("partition", problem)
        judge_plan(plan, problem, range(len(lengths)))
        facts = step_facts(plan, problem)
        assert facts.bound <= facts.max_cost * (1 + 1e-12) and facts.max_cost <= 1.5 * facts.bound
        meets = facts.max_cost <= facts.bound * (1 + 1e-11)
        whole = "maximum" if cost.cost_type == "tokens_sq" else "both"
        assert plan.exact == (whole if meets else "none"), (seed, longest)
        said.add(plan.exact)
    assert "none" in said


PEERS = [name for name, entry in POLICIES.items() if not entry.in_train]
INSTANCES = UPSTREAM["instances"]


def row_problem(lengths: list[int], ranks: int, row: int | None, **changes: Any) -> Problem:
    """Rows of so many tokens, or as long as they come."""
    capacity = PackedCapacity() if row is None else PackedCapacity.uniform(row)
    return problem_of(lengths, ranks, capacity=capacity, layout="packed", **changes)


def answer_of(name: str, instance: dict[str, Any]) -> object:
    """As upstream's is kept: rows of positions, of torchtitan each rank's rows of pieces of tokens."""
    ranks = instance["ranks"]
    policy = make_policy(name, row_problem(instance["lengths"], ranks, instance["row_tokens"]))
    if name == "torchtitan":
        rows = [policy.lengths[row].tolist() for row in policy.micro_batches(0)]
        return [rows[rank::ranks] for rank in range(ranks)]
    if isinstance(policy, BatchPolicy):  # row i is that of rank i modulo G
        return [row for turn in zip(*plain(next(policy.plans())), strict=True) for row in turn]
    return [row.tolist() for row in policy.rows]


@pytest.mark.parametrize("name", PEERS)
def test_upstreams_answer_on_every_instance(name):
    asked = [instance for instance in INSTANCES if name in instance]
    assert len(asked) == 200
    assert [at for at, instance in enumerate(asked) if answer_of(name, instance) != instance[name]] == []


@pytest.mark.parametrize(("row", "changes", "expected"), [(30, {}, 30), (None, {}, 22), (None, {"batch": 2}, 9)])
def test_a_row_is_as_long_as_the_capacity_or_as_a_rank_s_part_of_the_mean_batch(row, changes, expected):
    assert row_tokens(row_problem([5, 5, 5, 5, 5, 5, 5, 9], 2, row, **changes)) == expected


@pytest.mark.parametrize("name", [name for name in PEERS if name != "torchtitan"])
def test_what_is_told_of_an_epoch_s_samples_is_what_its_steps_take(name):
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 1234), 1, 300).astype(int)
    problem = row_problem(lengths, 4, 700, batch=32, order="shuffle")
    policy = make_policy(name, problem)
    steps = problem.data_order().steps_per_epoch if isinstance(policy, BatchPolicy) else policy.steps_per_epoch
    ids = np.concatenate([plan.sample_ids() for plan in islice(policy.plans(), steps)])
    times = np.bincount(ids, minlength=1234)
    assert policy.coverage == Coverage(lost=(times == 0).sum(), repeated=(times > 1).sum())


def test_a_row_holds_no_more_samples_than_it_may():
    assert first_fit([1] * 5, 9, most=2) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("name", "samples", "row", "message"),
    [
        *((name, 5, 9, "5 is not a multiple of the 2 ranks") for name in ("verl", "nemo_rl")),
        *((name, 6, 99, "less than a row of 99 tokens for each of 2 ranks") for name in ("axolotl", "torchtitan")),
    ],
)
def test_unequal_counts_and_an_epoch_without_a_step_are_refused(name, samples, row, message):
    with pytest.raises(UsageError, match=message):
        make_policy(name, row_problem([3] * samples, 2, row))


def packed(lengths, workers: int, batch: int, most: int | None = None, **changes) -> TokenBudget:
    return TokenBudget(row_problem(lengths, workers, most, batch=batch, **{"order": "shuffle", **changes}))


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=4, max_size=60),
    workers=st.integers(1, 4),
    most=st.sampled_from([None, 40, 41, 60, 100, 400]),
)
def test_every_sample_once_an_epoch_in_rows_within_the_budget(lengths, workers, most):
    policy = packed(lengths, workers, workers, most)
    plans = list(islice(policy.plans(), policy.steps_per_epoch))
    once = taken(plans)
    assert len(once) == len(set(once)) == len(lengths) - policy.coverage.lost
    # A rank sits out no step, so that what cannot fill one more step is lost, and nothing else.
    rows = -(-len(best_fit_decreasing(sorted(lengths, reverse=True), policy.budget_tokens)) // workers) * workers
    assert policy.coverage == Coverage(lost=policy.coverage.lost)
    assert (policy.coverage.lost > 0) == (len(lengths) < rows)
    for plan in plans:
        judge_plan(plan, policy.problem, fixed_batch=False)
        assert {len(share) for share in plan.shares} == {1}
        assert step_facts(plan, policy.problem).real_tokens.max() <= policy.budget_tokens


def test_without_a_capacity_the_mean_step_has_as_many_samples_as_asked_for_and_ranks_alike():
    lengths = built_in_trace("gsm8k").lengths
    policy = packed(lengths, 8, 256)
    assert 256 <= len(lengths) / policy.steps_per_epoch < 256 * 1.05
    ideal = lengths.sum() / (len(lengths) // 256 * 8)
    assert ideal <= policy.budget_tokens < 1.01 * ideal
    series = run_policy(policy, policy.problem, 100)
    assert series.max_cost.sum() <= 1.01 * series.bound.sum()


@pytest.mark.parametrize("name", UPSTREAM["multipack"])
def test_rows_are_at_least_as_full_as_multipacks(name):
    """Of whole steps, as multipack loses what its last one would hold; ours keeps it, and no packer needs fewer."""
    found = UPSTREAM["multipack"][name]
    lengths = np.array(found["lengths"]) if "lengths" in found else built_in_trace(name).lengths
    policy = packed(lengths, found["ranks"], found["ranks"], found["row_tokens"])
    steps, room = policy.steps_per_epoch, found["ranks"] * found["row_tokens"]
    tokens = [int(lengths[plan.sample_ids()].sum()) for plan in islice(policy.plans(), steps)]
    assert sum(tokens) == lengths.sum()
    assert steps == -(-lengths.sum() // room)
    assert (sum(tokens) - min(tokens)) / ((steps - 1) * room) >= found["fill"]


def test_torchtitan_by_hand():
    """Ranks hold 3+4+5 and 6+2+4 tokens; rows of 7 cut the 2, and the ends beyond a row each are none."""
    policy = make_policy("torchtitan", row_problem([3, 4, 5, 6, 2, 4], 2, 7))
    assert [policy.lengths[ids].tolist() for ids in policy.micro_batches(0)] == [[3, 4], [6, 1]]
    assert policy.coverage == Coverage(lost=2, cut=1)

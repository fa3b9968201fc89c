"""The packed token budget: every sample once an epoch, rows within the budget, as few as can be, ranks alike."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan, taken
from upstream_packing import UPSTREAM

from dynbench.errors import NothingFits
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.measure import run_policy
from dynbench.schedule.peers.row_peers import best_fit_decreasing
from dynbench.schedule.peers.token_budget import TokenBudget
from dynbench.schedule.policy import Coverage, Problem
from dynbench.schedule.traces import built_in_trace


def packed(lengths, workers: int, batch: int, most: int | None = None, **changes) -> TokenBudget:
    capacity = PackedCapacity() if most is None else PackedCapacity.uniform(most)
    return TokenBudget(Problem(np.asarray(lengths), workers, batch, capacity=capacity, layout="packed", **changes))


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


def test_without_a_capacity_the_mean_step_has_as_many_samples_as_asked_for():
    lengths = built_in_trace("gsm8k").lengths
    policy = packed(lengths, 8, 256)
    assert 256 <= len(lengths) / policy.steps_per_epoch < 256 * 1.05
    ideal = lengths.sum() / (len(lengths) // 256 * 8)
    assert ideal <= policy.budget_tokens < 1.01 * ideal


def test_the_incomplete_last_step_is_kept_and_split_for_all_ranks():
    """Five rows of 10 for two ranks: the last, of most samples, becomes two."""
    policy = packed([10, 10, 10, 10, 4, 3, 2, 1], 2, 2, 10, order="file")
    rows = sorted(sorted(policy.problem.lengths[row].tolist()) for row in policy.micro_batches(0))
    assert rows == [[1, 3], [2, 4], [10], [10], [10], [10]]
    assert policy.coverage == Coverage()


def test_a_sample_longer_than_the_capacity_is_refused():
    with pytest.raises(NothingFits, match="a sample of 50 tokens is longer"):
        packed([50, 3, 3], 2, 2, 40)


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


def test_ranks_of_a_step_are_alike():
    policy = packed(built_in_trace("lognormal").lengths, 8, 256)
    series = run_policy(policy, policy.problem, 100)
    assert series.max_cost.sum() <= 1.01 * series.bound.sum()

import logging
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan

from dynbench.errors import UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import Prefix, RankStream, candidate_costs
from dynbench.schedule.prefix_counts import solve_counts

LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 101).astype(int), 1, 200)


def problem_of(**changes) -> Problem:
    return Problem(**({"lengths": LENGTHS, "workers": 3, "global_batch": 12, "buffer": 10} | changes))


def plain(plan) -> list[list[int]]:
    return [ids.tolist() for (ids,) in plan.shares]


@pytest.mark.parametrize("order", ["file", "shuffle"])
def test_within_an_epoch_of_a_rank_nothing_is_lost_or_seen_twice(order):
    problem = problem_of(order=order)
    per_rank: list[list[int]] = [[], [], []]
    for plan in islice(Prefix(problem).plans(), 40):
        for rank, ids in enumerate(plain(plan)):
            per_rank[rank] += ids
    permutations = [problem.data_order().permutation(epoch) for epoch in range(8)]
    for rank, seen in enumerate(per_rank):
        expected = np.concatenate([permutation[rank::3] for permutation in permutations])
        assert len(seen) > 2 * (len(LENGTHS) // 3)
        assert seen == expected[: len(seen)].tolist()


@settings(max_examples=50)
@given(
    st.integers(1, 5),
    st.integers(5, 20),
    st.sampled_from(["tokens", "tokens_sq", "attention"]),
    st.sampled_from([None, np.array([1.0, 2.0, 0.5])]),
    st.integers(0, 100),
)
def test_gathering_the_costs_gives_the_replicated_plans(batch_per_rank, buffer, cost_type, speeds, seed):
    problem = problem_of(
        global_batch=3 * batch_per_rank,
        buffer=buffer,
        cost=CostModel(cost_type, pad_to_multiple_of=4),
        speeds=speeds,
        seed=seed,
        capacity=Capacity.per_rank([5, 8, 9]),
    )
    streams = [RankStream(problem, rank) for rank in range(3)]
    for plan in islice(Prefix(problem).plans(), 12):
        judge_plan(plan, problem)
        costs = [candidate_costs(problem, stream.lengths[None], [rank])[0] for rank, stream in enumerate(streams)]
        solution = solve_counts(np.stack(costs), problem.global_batch)
        assert plain(plan) == [s.take(n).tolist() for s, n in zip(streams, solution.counts.tolist(), strict=True)]
        assert plan.exact == solution.exact


def test_the_costs_solved_from_are_the_plans_costs():
    problem = problem_of(cost=CostModel("attention"), capacity=Capacity.uniform(6))
    for step in islice(Prefix(problem).steps(), 20):
        chosen = step.costs[np.arange(3), step.counts - 1]
        assert chosen.tolist() == step_costs(step.plan, problem).tolist()


def test_starting_later_gives_the_same_plans():
    policy = Prefix(problem_of())
    assert [plain(p) for p in islice(policy.plans(7), 5)] == [plain(p) for p in islice(policy.plans(), 7, 12)]


def test_more_plans_than_can_be_tried_are_refused_before_the_first_and_only_of_the_solver_that_tries_them():
    many = {"workers": 12, "global_batch": 60, "buffer": 20}
    with pytest.raises(UsageError, match="enumerate would try more than 2,000,000 plans"):
        Prefix(problem_of(solver="enumerate", **many))
    for solver in ("exact", "greedy"):
        Prefix(problem_of(solver=solver, **many))


def test_one_plan_can_be_tried_whatever_the_number_of_ranks():
    # Of all ways to share 28 samples out over 14 ranks, the buffers allow one; so do capacities of one sample.
    full = problem_of(workers=14, global_batch=28, buffer=2, solver="enumerate")
    assert [len(ids) for ids in plain(next(Prefix(full).plans()))] == [2] * 14
    capacity = Capacity.per_rank([1] * 23 + [30])
    alone = problem_of(workers=24, global_batch=40, buffer=30, solver="enumerate", capacity=capacity)
    assert [len(ids) for ids in plain(next(Prefix(alone).plans()))] == [1] * 23 + [17]


@pytest.mark.parametrize(("workers", "buffer", "warned"), [(2, 2, True), (2, 3, False), (1, 4, False), (1, 5, False)])
def test_a_buffer_that_holds_every_count_of_a_rank_leaves_all_the_choice_there_is(workers, buffer, warned, caplog):
    with caplog.at_level(logging.WARNING):
        Prefix(problem_of(workers=workers, global_batch=4, buffer=buffer)).warn_of_little_choice()
    assert bool(caplog.records) == warned


def test_buffers_that_leave_no_choice_are_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        policy = Prefix(problem_of(buffer=7))
        next(policy.plans())
        assert caplog.records == [], "a rank repeats nothing that was said before its launch"
        policy.warn_of_little_choice()
        assert caplog.text.count("use at least 8") == 1
        caplog.clear()
        Prefix(problem_of(buffer=8)).warn_of_little_choice()
    assert caplog.text == ""

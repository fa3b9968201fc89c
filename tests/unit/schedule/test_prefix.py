"""`prefix`: streams, and its solvers against brute force over all counts."""

from __future__ import annotations

import logging
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import COSTS

from dynbench.schedule import prefix_counts
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import Prefix, RankStream, automatic_buffer, candidate_costs
from dynbench.schedule.prefix_counts import all_counts, costs_of, number_of_counts, solve_counts

LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 101).astype(int), 1, 200)


def problem_of(**changes) -> Problem:
    return Problem(**({"lengths": LENGTHS, "workers": 3, "global_batch": 12, "buffer": 10} | changes))


@settings(max_examples=50)
@given(
    st.integers(1, 5),
    st.integers(5, 20),
    st.sampled_from(["tokens", "tokens_sq", "attention"]),
    st.sampled_from([None, np.array([1.0, 2.0, 0.5])]),
    st.integers(0, 100),
)
def test_what_a_rank_sees_of_its_own_stream_is_what_is_planned(batch_per_rank, buffer, cost_type, speeds, seed):
    """So ranks that gather their costs make the plans that each would make of all data."""
    cost, capacity = CostModel(cost_type, pad_to_multiple_of=4), Capacity.per_rank([5, 8, 9])
    batch = 3 * batch_per_rank
    problem = problem_of(global_batch=batch, buffer=buffer, cost=cost, speeds=speeds, seed=seed, capacity=capacity)
    streams = [RankStream(problem, rank) for rank in range(3)]
    for step in islice(Prefix(problem).steps(), 12):
        for rank, (stream, count) in enumerate(zip(streams, step.counts.tolist(), strict=True)):
            own = candidate_costs(problem, stream.lengths[None], [rank])[0]
            assert own.tolist() == step.costs[rank].tolist()
            assert own[count - 1] == step_costs(step.plan, problem)[rank]
            assert step.plan.shares[rank][0].tolist() == stream.take(count).tolist()


def test_one_plan_can_be_tried_whatever_the_number_of_ranks():
    full = Problem(LENGTHS, 14, 28, buffer=2, solver="enumerate")
    of_one = Capacity.per_rank([1] * 23 + [30])
    held = Problem(LENGTHS, 24, 40, buffer=30, capacity=of_one, solver="enumerate")
    counts = [next(Prefix(problem).plans()).local_batches for problem in (full, held)]
    assert counts == [(2,) * 14, (1,) * 23 + (17,)]


@pytest.mark.parametrize(
    ("workers", "batch", "buffer", "enough"),
    [(2, 4, 2, 4), (2, 4, 3, None), (3, 12, 7, 8), (3, 12, 8, None), (5, 12, 4, 5)],
)
def test_buffers_that_leave_no_choice_are_warned_about_where_a_rank_does_not_repeat_it(
    workers, batch, buffer, enough, caplog
):
    """A buffer that holds every count of a rank leaves all the choice there is."""
    with caplog.at_level(logging.WARNING):
        policy = Prefix(problem_of(workers=workers, global_batch=batch, buffer=buffer))
        next(policy.plans())
        assert caplog.records == []
        policy.warn_of_little_choice()
    assert len(caplog.records) == (enough is not None)
    assert enough is None or f"use at least {enough}" in caplog.text


KINDS = (COSTS[0], *COSTS[2:4])


def draw_costs(rng: np.random.Generator, ranks: int, buffer: int, kind: int) -> np.ndarray:
    """Prefix costs of heavy-tailed lengths, or any non-decreasing rows, shape [G, K]."""
    if kind == len(KINDS):
        return np.cumsum(rng.exponential(size=(ranks, buffer)) * rng.integers(0, 2, (ranks, buffer)), axis=1) + 1
    lengths = np.clip(rng.lognormal(2, 1, (ranks, buffer)).astype(int), 1, 60)
    return KINDS[kind].cost_padded(np.arange(1, buffer + 1), np.maximum.accumulate(lengths, axis=1))


def least(costs: np.ndarray, batch: int) -> tuple[float, float]:
    """Least maximum of all counts, and least variance at it; costs are infinite beyond what a rank may take."""
    ranks, buffer = costs.shape
    ways = np.indices([buffer] * ranks).reshape(ranks, -1).T
    chosen = costs[np.arange(ranks), ways[ways.sum(axis=1) == batch - ranks]]
    best = chosen[chosen.max(axis=1) == chosen.max(axis=1).min()]
    return best.max(), best.var(axis=1).min()


@pytest.mark.parametrize("instances", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("inline", ["as chosen", "hull"])
@pytest.mark.parametrize("kind", range(len(KINDS) + 1))
def test_no_counts_are_better(kind, inline, instances, monkeypatch):
    """The greedy solver is exact in the maximum only."""
    if inline == "hull":
        monkeypatch.setattr(prefix_counts, "ENUMERATION_LIMIT", 0)
    rng = np.random.default_rng([kind, inline == "hull"])
    for _ in range(instances):
        ranks, buffer = int(rng.integers(1, 6)), int(rng.integers(1, 8))
        costs = draw_costs(rng, ranks, buffer, kind)
        if rng.random() < 0.3:
            costs[rng.integers(ranks)] += costs.max() * rng.random()
        limits = rng.integers(1, buffer + 1, ranks)
        costs[np.arange(1, buffer + 1) > limits[:, None]] = np.inf
        batch = int(rng.integers(ranks, limits.sum() + 1))
        most, variance = least(costs, batch)
        for solver in ("enumerate", "exact", "greedy"):
            solved = solve_counts(costs, batch, solver)
            chosen = costs[np.arange(ranks), solved.counts - 1]
            assert solved.counts.sum() == batch
            assert chosen.max() == most
            assert solver == "greedy" or abs(chosen.var() - variance) <= 1e-9 * most**2
            assert solver != "exact" or solved.exact == "both"


def test_the_hull_is_searched_wherever_the_least_variance_may_be(monkeypatch):
    monkeypatch.setattr(prefix_counts, "ENUMERATION_LIMIT", 0)
    rng = np.random.default_rng(4)
    for instance in range(150):
        ranks, buffer = int(rng.integers(3, 7)), int(rng.integers(5, 9))
        costs = draw_costs(rng, ranks, buffer, len(KINDS) if instance % 3 else 0)
        batch = int(rng.integers(2 * ranks, ranks * buffer - ranks))
        exact, tried = (costs_of(costs, solve_counts(costs, batch, name).counts) for name in ("exact", "enumerate"))
        assert exact.max() == tried.max() and exact.var() == pytest.approx(tried.var(), rel=1e-9, abs=1e-9)


def test_an_automatic_buffer_holds_all_that_one_rank_of_a_step_can_get():
    assert [automatic_buffer(batch, 4) for batch in (8, 35, 36, 100)] == [32, 32, 33, 97]


def test_the_variance_of_too_many_counts_is_not_said_to_be_least():
    costs = np.cumsum(np.random.default_rng(0).exponential(size=(8, 300)), axis=1)
    costs[0] += costs.max()
    assert solve_counts(costs, 1200).exact == "maximum"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 20))
def test_all_counts_are_listed_once(bounds, total):
    lower, width = np.array(bounds).T
    upper = lower + width
    counts = all_counts(lower, upper, total)
    expected = [c for c in product(*map(range, lower, upper + 1)) if sum(c) == total]
    assert counts.tolist() == [list(c) for c in expected]
    assert number_of_counts(lower, upper, total, np.inf) == len(expected)
    for enough in (0, 1, 7, 50):
        counted = number_of_counts(lower, upper, total, enough)
        assert counted == len(expected) if len(expected) <= enough else enough < counted <= len(expected)

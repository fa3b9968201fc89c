"""`partition` against brute force over all deals of samples to ranks, in few operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from timeit import repeat

import numpy as np
import pytest
from brute_force import least
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import COSTS, FLAT, first_plan, judge_plan, problem_of

from dynbench.errors import NothingFits
from dynbench.schedule import balancing, partition_search
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.partition_search import largest_groups, least_maximum, least_work
from dynbench.schedule.peers.batch_peers import balanced_partitions
from dynbench.schedule.policy import Problem, make_policy

LENGTHS = st.lists(st.integers(1, 30), min_size=3, max_size=7)
ALIKE = st.lists(st.integers(4000, 4004), min_size=3, max_size=7)
"""Of which many splits last nearly as long."""
COST = st.sampled_from((*COSTS, FLAT))
TABLES = st.lists(st.tuples(st.sampled_from([4, 8, 12, 20, 32]), st.integers(1, 4)), min_size=1, max_size=4)
BY_LENGTH = TABLES.map(lambda table: Capacity.table([table]))
UNEQUAL = st.lists(TABLES, min_size=3, max_size=3).map(Capacity.table)
SPEEDS = st.lists(st.sampled_from([0.15, 0.5, 1.0, 1.3, 3.0]), min_size=3, max_size=3).map(np.array)
ROWS_BY_LENGTH = PackedCapacity.table([[(10, 60), (20, 45), (30, 35)]])
ROWS = st.sampled_from([PackedCapacity(), PackedCapacity.uniform(45), ROWS_BY_LENGTH])
ROWS_OF_TWO = st.sampled_from([PackedCapacity.per_rank([30, 60]), PackedCapacity.table([[(30, 70)], [(12, 50)]])])
SPEEDS_OF_TWO = st.sampled_from([None, np.array([1.0, 2.0])])
THREE = st.just(3)
PACKED = {"cost": st.sampled_from(COSTS), "layout": st.just("packed")}
PROBLEMS = {
    "equal ranks": st.builds(problem_of, LENGTHS, st.integers(1, 3), cost=COST),
    "capacities by length": st.builds(problem_of, LENGTHS, st.integers(2, 3), cost=COST, capacity=BY_LENGTH),
    "unequal speeds": st.builds(problem_of, LENGTHS | ALIKE, THREE, cost=COST, speeds=SPEEDS),
    "unequal capacities": st.builds(problem_of, LENGTHS, THREE, cost=COST, speeds=SPEEDS, capacity=UNEQUAL),
    "packed": st.builds(problem_of, LENGTHS, THREE, capacity=ROWS, speeds=st.none() | SPEEDS, **PACKED),
    "packed, unequal capacities": st.builds(
        problem_of, LENGTHS, st.just(2), capacity=ROWS_OF_TWO, speeds=SPEEDS_OF_TWO, **PACKED
    ),
}


def proven(problem: Problem) -> str:
    """What a plan of few samples is proven to be."""
    if problem.packed:
        return "maximum" if problem.cost.cost_type == "tokens_sq" else "both"
    return "both" if problem.equal_ranks else "maximum"


def judge(problem: Problem) -> None:
    """The plan is as good as brute force's, or both find that nothing fits."""
    best, total = least(problem)
    if best == np.inf:
        with pytest.raises(NothingFits):
            first_plan("partition", problem)
        return
    plan = first_plan("partition", problem)
    judge_plan(plan, problem, range(len(problem.lengths)))
    costs = step_costs(plan, problem)
    assert plan.exact == proven(problem)
    assert costs.max() == pytest.approx(best, rel=1e-9 if problem.packed else 1e-12)
    assert step_facts(plan, problem).bound <= costs.max() * (1 + 1e-12)
    if plan.exact == "both" and not problem.packed:
        assert costs.sum() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("examples", [30, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_few_samples_are_dealt_as_well_as_can_be_and_what_fits_is_found(kind, examples):
    settings(max_examples=examples)(given(PROBLEMS[kind])(judge))()


BATCH, WORKERS = 1024, 64


def large(layout: str) -> Problem:
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.8, BATCH).astype(int), 2, 512)
    return problem_of(lengths, WORKERS, layout=layout)


def dealing(problem: Problem) -> Callable[[], object]:
    return partial(make_policy("partition", problem).deal, [np.arange(BATCH)], 0)


@pytest.mark.parametrize(("limit", "exact"), [(0, "maximum"), (79, "maximum"), (80, "both")])
def test_where_a_table_would_be_too_large_the_maximum_alone_is_the_least(monkeypatch, limit, exact):
    """A table of 2 ranks, 8 samples and groups of 5 at most."""
    problem = problem_of([3, 5, 2, 8, 4, 4, 7, 9], 2)
    proven = first_plan("partition", problem)
    monkeypatch.setattr(partition_search, "TABLE_LIMIT", limit)
    plan = first_plan("partition", problem)
    assert (proven.exact, plan.exact) == ("both", exact)
    assert step_costs(plan, problem).max() == step_costs(proven, problem).max()


def test_an_exact_partition_takes_as_many_sweeps_as_halvings_of_its_range(monkeypatch):
    sweeps, sweep = [], partition_search._sweep

    class Counted(list):
        def __getitem__(self, position):
            sweeps[-1] += 1
            return super().__getitem__(position)

    def counted(cells, *arguments):
        sweeps.append(0)
        return sweep(Counted(cells), *arguments)

    monkeypatch.setattr(partition_search, "_sweep", counted)
    problem = large("padded")
    dealing(problem)()
    assert 0 < len(sweeps) <= math.log2(problem.lengths.sum())
    assert max(sweeps) <= WORKERS, "a sweep looks at one sample of each rank"


def test_packed_rows_take_few_rounds_of_exchanges(monkeypatch):
    rounds, exchange = [], balancing._Table.exchange
    monkeypatch.setattr(
        balancing._Table, "exchange", lambda table, shift: rounds.append(shift) or exchange(table, shift)
    )
    dealing(large("packed"))()
    assert len(rounds) <= 16


@pytest.mark.clock
@pytest.mark.parametrize(("layout", "times"), [("padded", 100), ("packed", 10)])
def test_a_plan_is_so_many_times_faster_than_largest_differencing(layout, times):
    """As verl has it."""
    problem = large(layout)
    usual = partial(balanced_partitions, problem.lengths.tolist(), WORKERS, equal_size=False)
    slow = min(repeat(usual, number=1, repeat=2))
    quick = min(repeat(dealing(problem), number=1, repeat=50))
    print(f"{layout}, B={BATCH}, G={WORKERS}: {quick * 1e3:.3f} ms, verl {slow * 1e3:.1f} ms")
    assert slow / quick > times


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.integers(1, 8), st.floats(0, 100))
def test_no_split_has_less_padded_work_than_the_bound_which_is_tight_at_its_price(lengths, most, price):
    weights, size = np.sort(lengths)[::-1].astype(float), len(lengths)
    numbers, least_works = np.arange(1, size + 1), []
    for number in numbers:
        cuts = [np.diff([0, *ends, size]) for ends in combinations(range(1, size), number - 1)]
        works = [(sizes * weights[np.cumsum(sizes) - sizes]).sum() for sizes in cuts if max(sizes) <= most]
        least_works.append(min(works, default=np.inf))
    bounds = least_work(numbers, weights, np.full(size, most), price)
    assert (bounds <= np.array(least_works) * (1 + 1e-12)).all()
    assert (bounds >= weights.sum() * (1 - 1e-12)).all()
    assert (bounds + price * numbers).min() == pytest.approx((least_works + price * numbers).min())


def test_a_group_is_no_larger_than_its_product_allows_where_the_quotient_is_rounded_up():
    """To 3, here."""
    weight = np.nextafter(1.0, 2.0)
    peak = np.nextafter(3 * weight, 0.0)
    assert largest_groups(np.array([peak, weight, weight, weight]), [1] * 4).tolist() == [1, 2, 2, 1]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40), COST, st.booleans())
def test_below_the_maximum_of_a_large_batch_the_ranks_cannot_take_it_whole(seed, workers, cost, capped):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3, 1, 120).astype(int), 1, 500)
    weights = np.sort(cost.per_sample(cost.padded(lengths)))[::-1]
    limits = np.sort(rng.integers(4, 20, len(weights))) if capped else np.full(len(weights), len(weights))
    counts = least_maximum(weights, workers, limits if capped else None)

    def reached(threshold: float) -> int:
        """How many samples the ranks take, each as many as it can."""
        start = 0
        for _ in range(workers):
            if start < len(weights):
                sizes = np.arange(1, limits[start] + 1)
                start += int(np.count_nonzero(sizes * weights[start] <= threshold))
        return start

    if counts is None:
        assert reached(np.inf) < len(weights)
        return
    starts = np.cumsum([0, *counts[:-1]])
    assert sum(counts) == len(weights)
    assert min(counts) >= 1
    assert (counts <= limits[starts]).all()
    assert reached(np.nextafter((counts * weights[starts]).max(), -np.inf)) < len(weights)

"""Deals of packed rows and single exchanges against all there are; micro-batches within capacities, and their deals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import first_plan, judge_plan, problem_of

from dynbench.schedule import balancing
from dynbench.schedule.balancing import Search, Work, exchanged, within_limits
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.packed import rows_by_slot

SEEDS = st.integers(0, 10**6)


def work_of(seed: int, samples: int, ranks: int, capped: bool = False, least: int = 1) -> Work:
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 30, samples))[::-1].copy()
    limits = None
    if capped:
        most = rng.integers(int(lengths.sum()) // ranks, 2 * int(lengths.sum()) // ranks + 2, (ranks, 1))
        limits = np.where(lengths > 15, most, most + 10)
    speeds = rng.choice([1.0, 2.0], ranks) if seed % 2 else np.ones(ranks)
    return Work(lengths * 1.5, lengths, speeds, rng.choice([0.0, 7.0], ranks), limits, least)


def least_samples(work: Work, owners: np.ndarray) -> int:
    """Of any rank."""
    return int(np.bincount(owners, minlength=work.ranks).min())


def deals(work: Work) -> Iterator[np.ndarray]:
    """Every deal that gives each rank what it needs and keeps to the limits."""
    for owners in map(np.array, product(range(work.ranks), repeat=len(work.weights))):
        if least_samples(work, owners) >= work.least and work.fits(owners):
            yield owners


def test_what_a_deal_costs_and_whether_it_fits_by_hand():
    limits = np.array([[9, 9, 12], [20, 20, 20]])
    work = Work(np.array([8.0, 6, 1]), np.array([4, 3, 2]), np.array([2.0, 1.0]), np.array([1.0, 5.0]), limits)
    both, alone = np.array([0, 1, 0]), np.array([0, 0, 0])
    assert (work.peak(both), work.peak(alone)) == (11, 8)
    assert work.fits(alone), "9 tokens are 9"
    tight = replace(work, limits=limits - [[1], [0]])
    assert tight.fits(both) and not tight.fits(alone)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 3), st.integers(0, 3), st.integers(1, 2))
def test_what_is_said_to_fit_fits(seed, ranks, more, least):
    work = work_of(seed, ranks * least + more, ranks, capped=True, least=least)
    found = within_limits(work)
    assert found is None or (work.fits(found) and least_samples(work, found) >= least)


def test_rows_are_filled_to_their_limits_where_levelling_them_leaves_a_sample_over():
    lengths = np.array([3, 3, 2, 2, 2])
    found = within_limits(Work(lengths.astype(float), lengths, np.ones(2), np.zeros(2), np.full((2, 5), 6)))
    assert found is not None and found.tolist() == [0, 0, 1, 1, 1]


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 3), st.integers(0, 4), st.booleans(), st.integers(1, 2))
def test_a_search_of_few_samples_is_exact(seed, ranks, more, capped, least):
    work = work_of(seed, min(ranks * least + more, 7), ranks, capped, least)
    best = min(map(work.peak, deals(work)), default=np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balancing, "NODES", 10**6)
        search = Search(work, np.inf, 0.0)
        assert search.proven
        if search.best is None:
            assert best == np.inf
            return
        assert work.peak(search.best) == pytest.approx(best, rel=1e-9)
        assert work.fits(search.best)
        assert least_samples(work, search.best) >= least
        again = Search(work, best, 0.0)
        assert (again.best, again.proven) == (None, True), "nothing is better than the best"
        ended = Search(work, np.inf, best)
        assert ended.proven and work.peak(ended.best) == pytest.approx(best, rel=1e-9)
        met = Search(work, best, best)
        assert (met.best, met.proven, met._nodes) == (None, True, 0), "at the bound nothing is searched"


def best_exchange(work: Work, owners: np.ndarray, limited: bool) -> float:
    """The lower peak of two ranks after the best exchange of a sample of the slow one for one of the other, or none."""
    spent = work.spent(owners) / work.speeds
    slow, fast = (0, 1) if spent[0] >= spent[1] else (1, 0)
    best = work.peak(owners)
    for mine, theirs in product(np.flatnonzero(owners == slow), [None, *np.flatnonzero(owners == fast)]):
        trial = owners.copy()
        trial[mine] = fast
        if theirs is not None:
            trial[theirs] = slow
        if np.bincount(trial, minlength=2)[slow] >= work.least and (not limited or work.fits(trial)):
            best = min(best, work.peak(trial))
    return best


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 6), st.booleans(), st.booleans(), st.integers(1, 2))
def test_each_exchange_of_two_equal_ranks_is_the_best_there_is(seed, half, capped, limited, least):
    work = work_of(2 * seed, 2 * half, 2, capped, least)
    owners = np.random.default_rng(seed).permutation(np.repeat([0, 1], half))
    if capped and limited:
        owners = within_limits(work)
    if owners is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balancing, "TURNS", 1)
        for _ in range(6):
            best = best_exchange(work, owners, limited and capped)
            owners = exchanged(work, owners, 0.0, limited=limited)
            assert work.peak(owners) == pytest.approx(best)
            assert least_samples(work, owners) >= least


@pytest.mark.parametrize(("weighed", "rounds"), [(100, 64), (20, 20), (1, 8)])
def test_fewer_rounds_are_made_where_each_weighs_more(monkeypatch, weighed, rounds):
    """Two pairs of ranks are weighed in a round, of 10 samples and 4 empty places each."""
    turns: list[int] = []
    monkeypatch.setattr(balancing._Table, "exchange", lambda table, shift: turns.append(shift) or True)
    monkeypatch.setattr(balancing, "TRIED", weighed * 2 * 14**2)
    lengths = np.full(40, 3)
    work = Work(lengths.astype(float), lengths, np.ones(4), np.zeros(4))
    exchanged(work, np.resize(np.arange(4), 40), 0.0)
    assert len(turns) == rounds


@given(st.lists(st.integers(1, 60), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_capacity_splits_a_share_instead_of_failing(lengths, workers, most):
    capacity = Capacity.table([[(20, most + 3), (60, most)]])
    problem = problem_of(lengths, workers, micro_batches="auto", capacity=capacity)
    judge_plan(first_plan("partition", problem), problem, range(len(lengths)))


def test_one_micro_batch_more_than_the_capacity_asks_for_is_tried_where_ranks_then_run_as_many():
    """Of three pairs a rank runs two; of four micro-batches each rank runs a pair and a single one."""
    problem = problem_of([10] * 6, 2, micro_batches="auto", capacity=Capacity.uniform(2), second=np.ones(6))
    assert step_cost(first_plan("partition", problem), problem) == 33


@given(SEEDS, st.integers(2, 4), st.integers(2, 4), st.integers(0, 6), st.booleans())
def test_where_one_sample_outlasts_the_others_all_are_in_slots_that_every_rank_fills(seed, ranks, slots, more, capped):
    work = work_of(seed, ranks * slots + more, ranks)
    lengths = work.lengths.copy()
    lengths[0] += 80
    limits = np.full((ranks, len(lengths)), int(lengths[0])) if capped else None
    rows = rows_by_slot(replace(work, lengths=lengths, weights=lengths * 1.5, limits=limits), slots)
    assert [len(own) for own in rows] == [slots] * ranks
    assert all(len(row) and lengths[row].sum() <= (lengths[0] if capped else np.inf) for own in rows for row in own)
    assert sorted(np.concatenate([row for own in rows for row in own]).tolist()) == list(range(len(lengths)))

"""The packers of other trainers against what those trainers answered, and the policies made of them by hand."""

from __future__ import annotations

from itertools import combinations, islice
from typing import Any

import numpy as np
import pytest
from plan_rules import plain
from plan_rules import problem_of as problem_in_order
from upstream_packing import UPSTREAM

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.peers.base import row_tokens
from dynbench.schedule.peers.row_peers import whole_rounds
from dynbench.schedule.policy import BatchPolicy, Coverage, Policy, Problem, make_policy

PEERS = [name for name, entry in POLICIES.items() if not entry.in_train]
INSTANCES = UPSTREAM["instances"]


def problem_of(lengths: list[int], ranks: int, row: int | None, **changes: Any) -> Problem:
    """Rows of so many tokens, or as long as they come."""
    capacity = PackedCapacity() if row is None else PackedCapacity.uniform(row)
    return problem_in_order(lengths, ranks, capacity=capacity, layout="packed", **changes)


def rows_of(policy: Policy) -> list[list[int]]:
    """Ids of the first epoch's rows; row i is that of rank i modulo G."""
    if isinstance(policy, BatchPolicy):
        return [row for turn in zip(*plain(next(policy.plans())), strict=True) for row in turn]
    return [row.tolist() for row in policy.rows]


def answer_of(name: str, instance: dict[str, Any]) -> object:
    """As upstream's is kept: rows of positions, of torchtitan each rank's rows of pieces of tokens."""
    ranks = instance["ranks"]
    policy = make_policy(name, problem_of(instance["lengths"], ranks, instance["row_tokens"]))
    if name == "torchtitan":
        rows = [policy.lengths[row].tolist() for row in policy.micro_batches(0)]
        return [rows[rank::ranks] for rank in range(ranks)]
    return rows_of(policy)


@pytest.mark.parametrize("name", PEERS)
def test_upstreams_answer_on_every_instance(name):
    asked = [instance for instance in INSTANCES if name in instance]
    assert len(asked) == 200
    assert [at for at, instance in enumerate(asked) if answer_of(name, instance) != instance[name]] == []


def test_another_rule_would_not_pass():
    """The answers tell the peers apart."""
    for one, other in combinations(PEERS, 2):
        assert sum(instance[one] != instance[other] for instance in INSTANCES) > 100, (one, other)


@pytest.mark.parametrize(("row", "changes", "expected"), [(30, {}, 30), (None, {}, 22), (None, {"batch": 2}, 9)])
def test_a_row_is_as_long_as_the_capacity_or_as_a_rank_s_part_of_the_mean_batch(row, changes, expected):
    assert row_tokens(problem_of([5, 5, 5, 5, 5, 5, 5, 9], 2, row, **changes)) == expected


@pytest.mark.parametrize("name", PEERS)
def test_what_is_told_of_an_epoch_s_samples_is_what_its_steps_take(name):
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 1234), 1, 300).astype(int)
    problem = problem_of(lengths, 4, 700, batch=32, order="shuffle")
    policy = make_policy(name, problem)
    steps = problem.data_order().steps_per_epoch if isinstance(policy, BatchPolicy) else policy.steps_per_epoch
    ids = np.concatenate([plan.sample_ids() for plan in islice(policy.plans(), steps)])
    if name == "torchtitan":
        assert policy.lengths[ids].sum() == steps * 4 * 700
        assert policy.coverage.repeated == 0 < policy.coverage.cut <= steps * 4
        return
    times = np.bincount(ids, minlength=1234)
    assert policy.coverage == Coverage(lost=(times == 0).sum(), repeated=(times > 1).sum())


@pytest.mark.parametrize(
    ("row", "rows", "coverage"),
    [
        (6, [[3, 3], [6], [1, 5], [2, 4]], Coverage(cut=1)),
        (7, [[3, 4], [6, 1]], Coverage(lost=2, cut=1)),
    ],
)
def test_torchtitan_by_hand(row, rows, coverage):
    """Ranks hold 3+4+5 and 6+2+4 tokens; rows of 6 cut the 5 and the 4, and the ends beyond two rows each are none."""
    policy = make_policy("torchtitan", problem_of([3, 4, 5, 6, 2, 4], 2, row))
    assert [policy.lengths[ids].tolist() for ids in policy.micro_batches(0)] == rows
    assert policy.coverage == coverage


def test_rows_are_added_until_all_ranks_run_equally_many():
    assert whole_rounds([[0, 1, 2], [3], [4, 5]], [2, 0, 1], 5) == [[0, 1], [3], [4], [5], [2]]


@pytest.mark.parametrize(
    ("name", "samples", "row", "message"),
    [
        *((name, 5, 9, "5 is not a multiple of the 2 ranks") for name in ("verl", "nemo_rl", "megatron")),
        *((name, 6, 99, "less than a row of 99 tokens for each of 2 ranks") for name in ("axolotl", "torchtitan")),
    ],
)
def test_unequal_counts_and_an_epoch_without_a_step_are_refused(name, samples, row, message):
    with pytest.raises(UsageError, match=message):
        make_policy(name, problem_of([3] * samples, 2, row))

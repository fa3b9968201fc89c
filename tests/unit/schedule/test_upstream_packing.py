"""The packers of other trainers against what those trainers answered, and the policies made of them by hand."""

from itertools import islice

import numpy as np
import pytest
from upstream_packing import UPSTREAM

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import PackedCapacity
from dynbench.schedule.peers import row_peers as bin_packing
from dynbench.schedule.peers.base import row_tokens
from dynbench.schedule.policy import BatchPolicy, Coverage, Policy, Problem, make_policy

PEERS = [name for name, entry in POLICIES.items() if not entry.in_train]
INSTANCES = UPSTREAM["instances"]


def problem_of(instance, **changes) -> Problem:
    lengths = np.array(instance["lengths"])
    capacity = PackedCapacity.uniform(instance["row_tokens"])
    whole = {"lengths": lengths, "workers": instance["ranks"], "global_batch": len(lengths), "capacity": capacity}
    return Problem(**{**whole, "layout": "packed", "order": "file", **changes})


def rows_of(policy: Policy) -> list[list[int]]:
    """Ids of the first epoch's rows; row i is that of rank i modulo G."""
    if isinstance(policy, BatchPolicy):
        shares = next(policy.plans()).shares
        return [shares[rank][turn].tolist() for turn in range(len(shares[0])) for rank in range(len(shares))]
    return [row.tolist() for row in policy.rows]


def answer_of(name: str, instance) -> object:
    """As upstream's is kept: rows of positions, of torchtitan each rank's rows of pieces of tokens."""
    policy = make_policy(name, problem_of(instance))
    if name == "torchtitan":
        rows = [policy.lengths[row].tolist() for row in policy.micro_batches(0)]
        return [rows[rank :: instance["ranks"]] for rank in range(instance["ranks"])]
    return rows_of(policy)


@pytest.mark.parametrize("name", PEERS)
def test_upstreams_answer_on_every_instance(name):
    asked = [instance for instance in INSTANCES if name in instance]
    assert len(asked) == 200
    wrong = [at for at, instance in enumerate(asked) if answer_of(name, instance) != instance[name]]
    assert wrong == []


@pytest.mark.parametrize("name", PEERS)
def test_another_rule_would_not_pass(name):
    """The answers tell the peers apart."""
    for other in PEERS:
        if other != name:
            assert sum(instance[name] != instance[other] for instance in INSTANCES) > 100, other


def test_a_row_is_as_long_as_the_capacity_or_as_a_rank_s_part_of_the_mean_batch():
    instance = {"lengths": [5, 5, 5, 5, 5, 5, 5, 9], "row_tokens": 30, "ranks": 2}
    assert row_tokens(problem_of(instance)) == 30
    assert row_tokens(problem_of(instance, capacity=PackedCapacity())) == 22
    assert row_tokens(problem_of(instance, capacity=PackedCapacity(), global_batch=2)) == 9


@pytest.mark.parametrize("name", PEERS)
def test_what_is_told_of_an_epoch_s_samples_is_what_its_steps_take(name):
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 1234), 1, 300).astype(int)
    problem = Problem(lengths, 4, 32, capacity=PackedCapacity.uniform(700), layout="packed")
    policy = make_policy(name, problem)
    steps = problem.data_order().steps_per_epoch if isinstance(policy, BatchPolicy) else policy.steps_per_epoch
    ids = np.concatenate([plan.sample_ids() for plan in islice(policy.plans(), steps)])
    if name == "torchtitan":
        tokens = policy.lengths[ids]
        assert tokens.sum() == steps * 4 * 700
        assert policy.coverage.repeated == 0 < policy.coverage.cut <= steps * 4
        return
    times = np.bincount(ids, minlength=1234)
    assert policy.coverage == Coverage(lost=(times == 0).sum(), repeated=(times > 1).sum())


def test_torchtitan_by_hand():
    """Ranks hold 3+4+5 and 6+2+4 tokens; rows of 6 cut the 5 and the 4, and the ends beyond two rows each are none."""
    policy = make_policy("torchtitan", problem_of({"lengths": [3, 4, 5, 6, 2, 4], "row_tokens": 6, "ranks": 2}))
    rows = [policy.lengths[row].tolist() for row in policy.micro_batches(0)]
    assert rows == [[3, 3], [6], [1, 5], [2, 4]]
    assert policy.coverage == Coverage(cut=1)
    lost = make_policy("torchtitan", problem_of({"lengths": [3, 4, 5, 6, 2, 4], "row_tokens": 7, "ranks": 2}))
    assert [lost.lengths[row].tolist() for row in lost.micro_batches(0)] == [[3, 4], [6, 1]]
    assert lost.coverage == Coverage(lost=2, cut=1)


def test_rows_are_added_until_all_ranks_run_equally_many():
    assert bin_packing.whole_rounds([[0, 1, 2], [3], [4, 5]], [2, 0, 1], 5) == [[0, 1], [3], [4], [5], [2]]


@pytest.mark.parametrize("name", ["verl", "nemo_rl", "megatron"])
def test_equal_counts_need_a_multiple_of_the_ranks(name):
    with pytest.raises(UsageError, match="5 is not a multiple of the 2 ranks"):
        make_policy(name, problem_of({"lengths": [3] * 5, "row_tokens": 9, "ranks": 2}))


@pytest.mark.parametrize("name", ["axolotl", "torchtitan"])
def test_an_epoch_without_a_step_is_refused(name):
    with pytest.raises(UsageError, match="less than a row of 99 tokens for each of 2 ranks"):
        make_policy(name, problem_of({"lengths": [3] * 6, "row_tokens": 99, "ranks": 2}))

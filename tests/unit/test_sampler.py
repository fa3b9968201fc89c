from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from dynbench.errors import NothingFits, UsageError
from dynbench.sampler import PlannedBatchSampler
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import REGISTRY, Problem, missing_package, policy_class

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 203).astype(int), 2, 300)
RANKS, BATCH = 3, 12
TRAINABLE = [
    name
    for name, entry in REGISTRY.items()
    if entry.in_train and policy_class(name).fixed_batch and missing_package(name) is None
]


def sampler(rank=0, **changes) -> PlannedBatchSampler:
    return PlannedBatchSampler(LENGTHS, RANKS, rank, BATCH, **changes)


def epoch_of(*samplers: PlannedBatchSampler) -> list[list[list[int]]]:
    """Step by step the batches of all ranks."""
    return [list(step) for step in zip(*samplers, strict=True)]


@pytest.mark.parametrize("policy", TRAINABLE)
def test_the_ranks_together_run_the_plan(policy):
    ranks = [sampler(rank, policy=policy, seed=4, window=2) for rank in range(RANKS)]
    planner = Planner(policy, Problem(LENGTHS, RANKS, BATCH, seed=4, window=2))
    for epoch in (0, 1):
        for one in ranks:
            one.set_epoch(epoch)
        for step, batches in enumerate(epoch_of(*ranks)):
            shares = planner.plan(epoch * len(ranks[0]) + step).shares
            assert batches == [share[0].tolist() for share in shares]


@given(st.integers(0, 99), st.sampled_from(["static", "partition", "window"]))
@settings(max_examples=25, deadline=None)
def test_an_epoch_sees_no_sample_twice(seed, policy):
    ranks = [sampler(rank, policy=policy, seed=seed, window=2) for rank in range(RANKS)]
    seen = [i for batches in epoch_of(*ranks) for ids in batches for i in ids]
    assert len(seen) == len(set(seen)) == len(LENGTHS) // BATCH * BATCH


def test_epochs_and_seeds_differ_and_repeat():
    first = list(sampler())
    assert list(sampler()) == first
    assert list(sampler(seed=1)) != first
    later = sampler()
    later.set_epoch(1)
    assert list(later) != first
    later.set_epoch(0)
    assert list(later) == first
    assert len(later) == len(first) == len(LENGTHS) // BATCH


@pytest.mark.parametrize("policy", ["partition", "prefix", "window"])
@pytest.mark.parametrize("stop", [1, 7, len(LENGTHS) // BATCH])
def test_resumed_in_mid_epoch_it_repeats_and_skips_nothing(policy, stop):
    whole = [sampler(1, policy=policy, window=4), sampler(1, policy=policy, window=4)]
    whole[1].set_epoch(1)
    expected = [*whole[0], *whole[1]]

    before, after = sampler(1, policy=policy, window=4), sampler(1, policy=policy, window=4)
    got = list(islice(before, stop))
    after.load_state_dict(before.state_dict())
    for epoch in range(int(after.state_dict()["epoch"]), 2):
        after.set_epoch(epoch)
        got += after
    assert got == expected


def test_a_state_of_another_rank_will_do():
    state = _advance(sampler(0), 5).state_dict()
    other = sampler(2)
    other.load_state_dict(state)
    assert list(other) == list(sampler(2))[5:]


def test_loader_workers_read_ahead_and_the_loop_says_how_far_it_came():
    ahead = sampler()
    loader = DataLoader(range(len(LENGTHS)), batch_sampler=ahead, num_workers=2, prefetch_factor=2)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(3)]
    assert ahead.state_dict()["done"] > 3
    resumed = sampler()
    resumed.load_state_dict(ahead.state_dict(done=3))
    assert seen + list(resumed) == list(sampler())


def test_looking_at_one_batch_skips_nothing():
    looked_at = sampler()
    first = next(iter(looked_at))
    assert next(iter(looked_at)) == first
    assert list(looked_at) == list(sampler())


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"policy": "static"}, {"capacity": 9}, {"cost": "attention"}, {"speeds": [1.0, 1.0, 2.0]}],
    ids=str,
)
def test_a_state_of_other_settings_is_refused(changes):
    with pytest.raises(UsageError, match="other lengths, ranks, batch, policy or seed"):
        sampler(**changes).load_state_dict(sampler().state_dict())


def test_a_state_of_another_version_is_refused():
    with pytest.raises(UsageError, match="not one of this version"):
        sampler().load_state_dict({**sampler().state_dict(), "version": 0})


def test_the_weight_of_a_batch_is_its_share():
    ranks = [sampler(rank) for rank in range(RANKS)]
    for batches in epoch_of(*ranks):
        assert sum(ranks[0].weight(ids) for ids in batches) == pytest.approx(RANKS)
    one = ranks[0]
    labels = torch.zeros(5, dtype=torch.int64)
    expected = 5 * RANKS / BATCH
    assert {one.weight(5), one.weight([0] * 5), one.weight(labels), one.weight({"labels": labels})} == {expected}


def test_the_weighted_gradient_is_that_of_the_global_batch():
    """Averaged over ranks as DDP does; without weights it is another one."""
    inputs = torch.randn(len(LENGTHS), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nn.Linear(4, 1, dtype=torch.float64)
    ranks = [sampler(rank) for rank in range(RANKS)]

    def gradient(ids, weight=1.0):
        model.zero_grad()
        (weight * model(inputs[ids]).pow(2).mean()).backward()
        return model.weight.grad.clone()

    for batches in epoch_of(*ranks):
        whole = gradient([i for ids in batches for i in ids])
        weighted = sum(gradient(ids, ranks[0].weight(ids)) for ids in batches) / RANKS
        plain = sum(gradient(ids) for ids in batches) / RANKS
        torch.testing.assert_close(weighted, whole, rtol=1e-12, atol=0)
        assert (plain - whole).abs().max() > 1e-3 * whole.abs().max()


def test_costs_and_capacities_may_be_given_short_or_whole():
    assert list(sampler(capacity=9)) == list(sampler(capacity=Capacity.uniform(9)))
    assert list(sampler(capacity=[9, 6, 9])) == list(sampler(capacity=Capacity.per_rank([9, 6, 9])))
    assert list(sampler(cost="attention")) == list(sampler(cost=CostModel("attention")))
    assert all(len(ids) <= 6 for ids in sampler(1, capacity=[9, 6, 9]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3}, "rank 3 of 3"),
        ({"rank": -1}, "rank -1 of 3"),
        ({"policy": "packed"}, "cannot train"),
        ({"policy": "token_budget"}, "varies the global batch"),
        ({"policy": "partitions"}, "Did you mean 'partition'"),
        ({"global_batch": 2}, "less than the 3 ranks"),
        ({"global_batch": 500}, "more than the 203 samples"),
        ({"lengths": [3.5] * 20}, "float64"),
        ({"lengths": [[3]] * 20}, r"shape \(20, 1\)"),
        ({"lengths": [3, 0] * 20}, "length 0"),
        ({"capacity": 0}, "schedule.capacity"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        PlannedBatchSampler(**{"lengths": LENGTHS, "world_size": 3, "rank": 0, "global_batch": 12, **changes})


def test_what_does_not_fit_is_said_while_iterating():
    with pytest.raises(NothingFits, match="12 samples do not fit"):
        list(sampler(capacity=3))


def test_a_negative_epoch_is_refused():
    with pytest.raises(UsageError, match="epoch -1"):
        sampler().set_epoch(-1)


def _advance(one: PlannedBatchSampler, steps: int) -> PlannedBatchSampler:
    assert len(list(islice(one, steps))) == steps
    return one

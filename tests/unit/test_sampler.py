import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.sampler import PlannedBatchSampler
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Planner, Problem, policy_class

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 203).astype(int), 2, 300)
RANKS, BATCH = 3, 12
TRAINABLE = [
    name
    for name, entry in POLICIES.items()
    if entry.in_train and policy_class(name).fixed_batch and POLICIES[name].missing is None
]

ACCUMULATED = [(name, parts) for name in TRAINABLE for parts in ((1, 2, 4) if policy_class(name).splits else (1,))]
"""Policies, and batches per optimizer step that they can make."""


def sampler(rank=0, **changes) -> PlannedBatchSampler:
    return PlannedBatchSampler(LENGTHS, RANKS, rank, BATCH, **changes)


def epoch_of(*samplers: PlannedBatchSampler) -> list[list[list[int]]]:
    """Step by step the batches of all ranks."""
    return [list(step) for step in zip(*samplers, strict=True)]


@pytest.mark.slow
@given(st.integers(0, 99), st.sampled_from(TRAINABLE), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_an_epoch_sees_no_sample_twice_and_its_weights_make_a_whole(seed, policy, window):
    ranks = [sampler(rank, policy=policy, seed=seed, window=window) for rank in range(RANKS)]
    steps = epoch_of(*ranks)
    seen = [i for batches in steps for ids in batches for i in ids]
    assert len(seen) == len(LENGTHS) // BATCH * BATCH
    if policy != "prefix":  # whose ranks begin their next epoch by themselves
        assert len(seen) == len(set(seen))
    for batches in steps:
        assert sum(one.weight(ids) for one, ids in zip(ranks, batches, strict=True)) == pytest.approx(RANKS)


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


def readme_loop(one, epochs, state=None):
    """The loop of the guide, resumed from a state: batch by batch the epoch, the batches done in it, the batch."""
    first, done = (0, 0) if state is None else (state["epoch"], state["done"])
    for epoch in range(first, epochs):
        one.set_epoch(epoch)
        for batch in one:
            done += 1
            yield epoch, done, batch
        done = 0


def stopped(one, stop, counted):
    """What the loop got in `stop` batches, and the state it saved then."""
    got = list(islice(readme_loop(one, 2), stop))
    done = got[-1][1] if got else 0
    return got, one.state_dict(done=done if counted else None)


@pytest.mark.slow
@given(
    case=st.sampled_from(ACCUMULATED),
    objective=st.sampled_from(["sum", "slots"]),
    seed=st.integers(0, 9),
    window=st.integers(1, 6),
    stop=st.integers(0, 2 * 4 * (len(LENGTHS) // BATCH)) | st.sampled_from([0, 16, 32]),
    counted=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_resumed_anywhere_it_repeats_and_skips_nothing(case, objective, seed, window, stop, counted):
    same = {"policy": case[0], "accumulate": case[1], "objective": objective, "seed": seed, "window": window}
    expected = list(readme_loop(sampler(1, **same), 2))
    got, state = stopped(sampler(1, **same), stop, counted)
    state = json.loads(json.dumps(state))
    resumed = sampler(1, **same)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    again = sampler(1, **same)
    again.load_state_dict(resumed.state_dict())
    assert got + list(readme_loop(again, 2, state)) == expected


@pytest.mark.parametrize("policy", TRAINABLE)
def test_at_an_epochs_end_nothing_of_it_is_left(policy):
    one = sampler(1, policy=policy, window=3)
    assert len(list(one)) == len(one)
    ended = one.state_dict()
    assert (ended["epoch"], ended["done"]) == (1, 0)
    assert one.state_dict(done=len(one)) == ended
    one.set_epoch(1)
    assert one.state_dict() == ended


@pytest.mark.parametrize("policy", TRAINABLE)
def test_a_finished_epoch_that_was_loaded_yields_nothing_more(policy):
    one = sampler(policy=policy)
    one.load_state_dict({**one.state_dict(), "epoch": 0, "done": len(one)})
    assert one.state_dict()["epoch"] == 1
    expected = [step for step in readme_loop(sampler(policy=policy), 2) if step[0] == 1]
    assert list(readme_loop(one, 2, {"epoch": 0, "done": 0})) == expected


def test_looking_at_one_batch_of_a_resumed_epoch_moves_nothing():
    one = sampler()
    one.load_state_dict(_advance(sampler(), 5).state_dict())
    assert next(iter(one)) == next(iter(one))
    assert list(one) == list(sampler())[5:]
    assert list(one) == list(sampler())


def test_a_state_of_another_rank_will_do():
    state = _advance(sampler(0), 5).state_dict()
    other = sampler(2)
    other.load_state_dict(state)
    assert list(other) == list(sampler(2))[5:]


@pytest.mark.parametrize("policy", ["partition", "prefix", "window"])
def test_loader_workers_read_ahead_and_the_loop_says_how_far_it_came(policy):
    ahead = sampler(policy=policy)
    expected = list(sampler(policy=policy))
    loader = DataLoader(range(len(LENGTHS)), batch_sampler=ahead, num_workers=1, prefetch_factor=2)
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == 3:
            assert ahead.state_dict()["done"] > 3
            resumed = sampler(policy=policy)
            resumed.load_state_dict(ahead.state_dict(done=3))
            assert seen + list(resumed) == expected
    assert seen == expected
    ended = ahead.state_dict(done=len(seen))
    assert ended == ahead.state_dict() and (ended["epoch"], ended["done"]) == (1, 0)


@pytest.mark.parametrize(
    "changes",
    [
        *({"seed": 1}, {"policy": "static"}, {"capacity": 9}, {"cost": "attention"}, {"speeds": [1.0, 1.0, 2.0]}),
        {"layout": "packed"},
        {"accumulate": 2},
    ],
    ids=str,
)
def test_a_state_of_other_settings_is_refused(changes):
    with pytest.raises(UsageError, match="other lengths, ranks, batch, policy or seed"):
        sampler(**changes).load_state_dict(sampler().state_dict())


def test_costs_and_capacities_may_be_given_short_or_whole():
    assert list(sampler(capacity=9)) == list(sampler(capacity=Capacity.uniform(9)))
    assert list(sampler(capacity=[9, 6, 9])) == list(sampler(capacity=Capacity.per_rank([9, 6, 9])))
    assert list(sampler(capacity=np.int64(9))) == list(sampler(capacity=9))
    assert list(sampler(capacity=np.array([9, 6, 9]))) == list(sampler(capacity=[9, 6, 9]))
    assert list(sampler(cost="attention")) == list(sampler(cost=CostModel("attention")))
    assert all(len(ids) <= 6 for ids in sampler(1, capacity=[9, 6, 9]))


def test_packed_batches_are_planned_by_their_real_tokens_and_limited_in_them():
    ranks = [sampler(rank, layout="packed", seed=4) for rank in range(RANKS)]
    planner = Planner("partition", Problem(LENGTHS, RANKS, BATCH, seed=4, layout="packed"))
    for step, batches in enumerate(epoch_of(*ranks)):
        assert batches == [share[0].tolist() for share in planner.plan(step).shares]
    assert list(sampler(policy="packed", seed=4)) == list(ranks[0])
    assert list(sampler(policy="static packed")) == list(sampler(policy="static", layout="packed"))
    roomy, tight = (sampler(layout="packed", capacity=most) for most in (10_000, [600, 600, 500]))
    assert list(roomy) == list(sampler(layout="packed")) != list(sampler())
    assert all(LENGTHS[ids].sum() <= 600 for ids in tight)


CAPPED = [name for name in TRAINABLE if POLICIES[name].capped]


@pytest.mark.parametrize("policy", TRAINABLE)
@pytest.mark.parametrize("capacity", [8, [8, 5, 8], Capacity.uniform(8)], ids=["one", "per rank", "whole"])
def test_a_capacity_is_obeyed_or_refused_by_name(policy, capacity):
    if policy in CAPPED:
        assert all(len(ids) <= 5 for ids in islice(sampler(1, policy=policy, capacity=[8, 5, 8]), 10))
        assert all(len(ids) <= 8 for ids in islice(sampler(policy=policy, capacity=capacity), 10))
        return
    with pytest.raises(UsageError, match=f"capacity: policy '{policy}' obeys no capacities") as refused:
        sampler(policy=policy, capacity=capacity)
    assert all(name in refused.value.hint for name in CAPPED)
    assert policy not in refused.value.hint.split(", ")
    assert list(sampler(policy=policy, capacity=Capacity())) == list(sampler(policy=policy))


def test_the_guide_names_the_policies_that_obey_a_capacity():
    text = (Path(__file__).resolve().parents[2] / "dynbench" / "guides" / "own_code.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "`capacity=`" in line]
    assert {name for name in POLICIES if f"`{name}`" in line} == set(CAPPED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3}, "rank: 3\nhint: Give a whole number from 0 to 2"),
        ({"rank": -1}, "rank: -1"),
        ({"world_size": 0}, "world_size: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"buffer": 0}, "buffer: 0"),
        ({"global_batch": 12.0}, "global_batch: 12.0"),
        ({"cost": "token"}, "'token' is not a cost type. Did you mean 'tokens'"),
        ({"cost": "foo"}, "Known: tokens, tokens_sq, attention, measured"),
        ({"cost": None}, "None is not a cost type"),
        ({"cost": "measured"}, "'measured' says no coefficients\nhint: Give CostModel"),
        ({"capacity": [9, 0, 9]}, r"capacity\[1\]: 0"),
        ({"capacity": [9, 9]}, "2 capacities for 3 ranks"),
        ({"policy": "packed", "layout": "padded"}, "layout: .padded. with policy .packed.; use packed, or leave"),
        ({"layout": "rows"}, "use padded or packed"),
        ({"policy": "window", "layout": "packed"}, "makes no sense under policy .window."),
        ({"layout": "packed", "capacity": Capacity.uniform(8)}, "in samples, with micro-batches that are packed"),
        ({"policy": "token_budget"}, "varies the global batch"),
        ({"policy": "partitions"}, "Did you mean 'partition'"),
        ({"global_batch": 2}, "less than the 3 ranks"),
        ({"global_batch": 500}, "more than the 203 samples"),
        ({"lengths": [3.5] * 20}, "float64"),
        ({"lengths": [[3]] * 20}, r"shape \(20, 1\)"),
        ({"lengths": [3, 0] * 20}, "length 0"),
        ({"capacity": 0}, "capacity: 0"),
        ({"capacity": 2.5}, "capacity: 2.5"),
        *(({"window": window}, f"window: {window!r}\nhint: Give a whole number of at least 1") for window in (0, "2")),
        ({"accumulate": 0}, "accumulate: 0\nhint: Give a whole number of at least 1"),
        ({"accumulate": 5}, "5 on each of 3 ranks for 12 samples"),
        ({"accumulate": 2, "policy": "prefix"}, "2 with policy 'prefix'"),
        ({"accumulate": 2, "objective": "mean"}, "objective: 'mean'\nhint: Use sum or slots"),
        *(({"second": second}, "second") for second in ([1, 2], [0.5] * 203, [-1] * 203)),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        PlannedBatchSampler(**{"lengths": LENGTHS, "world_size": 3, "rank": 0, "global_batch": 12, **changes})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *(({"done": done}, r"state\['done'\]") for done in (-1, 17, 2.5)),
        *(({"epoch": epoch}, r"state\['epoch'\]") for epoch in (-1, None, 0.5)),
        ({"version": 0}, "not one of this version"),
    ],
)
def test_states_that_cannot_be_are_refused(state, message):
    one = sampler()
    with pytest.raises(UsageError, match=message):
        one.load_state_dict({**one.state_dict(), **state})
    with pytest.raises(UsageError, match="epoch: -1"):
        one.set_epoch(-1)
    with pytest.raises(UsageError, match="done: 17\nhint: Give a whole number from 0 to 16"):
        one.state_dict(done=17)


def test_what_does_not_fit_is_said_while_iterating():
    with pytest.raises(NothingFits, match="12 samples do not fit"):
        list(sampler(capacity=3))


def _advance(one: PlannedBatchSampler, steps: int) -> PlannedBatchSampler:
    assert len(list(islice(one, steps))) == steps
    return one


@pytest.mark.parametrize("objective", ["sum", "slots"])
@pytest.mark.parametrize(("policy", "parts"), ACCUMULATED)
def test_the_ranks_together_accumulate_the_plan(policy, parts, objective):
    same = {"policy": policy, "seed": 4, "window": 2, "accumulate": parts, "objective": objective}
    ranks = [sampler(rank, **same) for rank in range(RANKS)]
    problem = Problem(LENGTHS, RANKS, BATCH, seed=4, window=2, micro_batches=parts, objective=objective)
    planner = Planner(policy, problem)
    for epoch in (0, 1):
        for one in ranks:
            one.set_epoch(epoch)
        batches = epoch_of(*ranks)
        assert len(batches) == len(ranks[0]) == len(LENGTHS) // BATCH * parts
        for number, ids in enumerate(batches):
            step, part = divmod(number, parts)
            shares = planner.plan(epoch * (len(LENGTHS) // BATCH) + step).shares
            assert ids == [share[part].tolist() for share in shares]
        for step in range(0, len(batches), parts):
            accumulated = [
                ranks[0].weight(ids) / parts for number in range(step, step + parts) for ids in batches[number]
            ]
            assert sum(accumulated) == pytest.approx(RANKS), "the mean over ranks is that over the global batch"


def test_ranks_of_unequal_speed_run_as_many_batches_in_slots_and_where_batches_are_packed():
    for same in ({"objective": "slots"}, {"layout": "packed"}, {"layout": "packed", "objective": "slots"}):
        ranks = [sampler(rank, speeds=[1.0, 1.0, 2.0], accumulate=2, **same) for rank in range(RANKS)]
        seen = [i for batches in epoch_of(*ranks) for ids in batches for i in ids]
        assert len(seen) == len(set(seen)) == len(LENGTHS) // BATCH * BATCH
    with pytest.raises(UsageError, match="accumulate: 2 with ranks of unequal speed"):
        sampler(speeds=[1.0, 1.0, 2.0], accumulate=2)
    assert list(sampler(speeds=[2.0, 2.0, 2.0], accumulate=2)) == list(sampler(accumulate=2))


def test_targets_of_one_batch_of_several_do_not_tell_its_weight():
    with pytest.raises(UsageError, match="of one of the 2 batches of an optimizer step"):
        sampler(accumulate=2).weight([1, 2], targets=5)


def test_a_second_number_per_sample_is_planned_with():
    second = np.random.default_rng(3).integers(0, 400, len(LENGTHS))
    ranks = [sampler(rank, second=second, second_weight=0.5) for rank in range(RANKS)]
    planner = Planner("partition", Problem(LENGTHS, RANKS, BATCH, second=second, second_weight=0.5))
    for step, batches in enumerate(epoch_of(*ranks)):
        assert batches == [share[0].tolist() for share in planner.plan(step).shares]
    blind = list(sampler())
    assert list(ranks[0]) != blind
    for nothing in ({"second": np.zeros_like(second)}, {"second": second, "second_weight": 0.0}):
        assert list(sampler(**nothing)) == blind
        sampler(**nothing).load_state_dict(sampler().state_dict())
    with pytest.raises(UsageError, match="other lengths"):
        ranks[0].load_state_dict(sampler().state_dict())

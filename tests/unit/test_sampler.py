"""Batches planned for a user's own loop: the ranks' plans, resumed anywhere, their weights, and what is refused."""

import json
from array import array
from collections import UserDict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import plain
from torch.utils.data import DataLoader

from dynbench.errors import NothingFits, UsageError
from dynbench.kernels import PackedCollator
from dynbench.plugins import POLICIES
from dynbench.sampler import PlannedBatchSampler
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Planner, Problem, policy_class

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 203).astype(int), 2, 300)
RANKS, BATCH = 3, 12
STEPS = len(LENGTHS) // BATCH
"""Of an epoch."""
TRAINABLE = [
    name
    for name, entry in POLICIES.items()
    if entry.in_train and policy_class(name).fixed_batch and entry.missing is None
]
CAPPED = [name for name in TRAINABLE if POLICIES[name].capped]
UNCAPPED = [name for name in TRAINABLE if name not in CAPPED]
ACCUMULATED = [(name, parts) for name in TRAINABLE for parts in ((1, 2, 4) if policy_class(name).splits else (1,))]
"""Policies, and batches per optimizer step that they can make."""


def sampler(rank=0, **changes) -> PlannedBatchSampler:
    return PlannedBatchSampler(LENGTHS, RANKS, rank, BATCH, **changes)


def epoch_of(*samplers: PlannedBatchSampler) -> list[list[list[int]]]:
    """Step by step the batches of all ranks."""
    return [list(step) for step in zip(*samplers, strict=True)]


def readme_loop(one, epochs, state=None):
    """The loop of the guide, resumed from a state: batch by batch the epoch, the batches done in it, the batch."""
    first, done = (0, 0) if state is None else (state["epoch"], state["done"])
    for epoch in range(first, epochs):
        one.set_epoch(epoch)
        for batch in one:
            done += 1
            yield epoch, done, batch
        done = 0


@pytest.mark.slow
@given(
    case=st.sampled_from(ACCUMULATED),
    objective=st.sampled_from(["sum", "slots"]),
    seed=st.integers(0, 9),
    window=st.integers(1, 6),
    stop=st.integers(0, 2 * 4 * STEPS) | st.sampled_from([0, 16, 32]),
    counted=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_resumed_anywhere_it_repeats_and_skips_nothing(case, objective, seed, window, stop, counted):
    same = {"policy": case[0], "accumulate": case[1], "objective": objective, "seed": seed, "window": window}
    expected = list(readme_loop(sampler(1, **same), 2))
    one, resumed, again = (sampler(1, **same) for _ in range(3))
    got = list(islice(readme_loop(one, 2), stop))
    done = got[-1][1] if got else 0
    state = json.loads(json.dumps(one.state_dict(done=done if counted else None)))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    again.load_state_dict(resumed.state_dict())
    assert got + list(readme_loop(again, 2, state)) == expected


def test_at_an_epochs_end_nothing_of_it_is_left_and_loaded_it_yields_nothing_more():
    one, ended = sampler(1), sampler(1).state_dict() | {"epoch": 1}
    list(one)
    assert one.state_dict() == one.state_dict(done=STEPS) == ended
    one.load_state_dict(ended | {"epoch": 0, "done": STEPS})
    assert one.state_dict() == ended and list(one) == []
    one.set_epoch(1)
    assert one.state_dict() == ended and len(list(one)) == STEPS


def test_a_state_of_another_rank_will_do_and_looking_at_one_batch_moves_nothing():
    stopped, one = sampler(0), sampler(2)
    expected = list(one)
    assert len(list(islice(stopped, 5))) == 5
    one.load_state_dict(stopped.state_dict())
    assert next(iter(one)) == expected[5]
    assert [list(one), list(one)] == [expected[5:], expected]


def test_loader_workers_read_ahead_and_the_loop_says_how_far_it_came():
    ahead, resumed, expected = sampler(), sampler(), list(sampler())
    loader = DataLoader(range(len(LENGTHS)), batch_sampler=ahead, num_workers=1, prefetch_factor=2)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(3)]
    assert ahead.state_dict()["done"] > 3
    resumed.load_state_dict(ahead.state_dict(done=3))
    assert seen + list(resumed) == expected == seen + [batch.tolist() for batch in batches]


SECOND = np.random.default_rng(3).integers(0, 400, len(LENGTHS))


OTHER = {"seed": 1, "policy": "static", "capacity": 9, "cost": "attention", "layout": "packed", "accumulate": 2}
OTHER |= {"speeds": [1.0, 1.0, 2.0], "second": SECOND}


@pytest.mark.parametrize("name", OTHER)
def test_a_state_of_other_settings_is_refused(name):
    with pytest.raises(UsageError, match="other lengths, ranks, batch, policy or seed"):
        sampler(**{name: OTHER[name]}).load_state_dict(sampler().state_dict())


@pytest.mark.parametrize(("short", "whole"), [
    ({"capacity": np.int64(9)}, {"capacity": Capacity.uniform(9)}),
    ({"capacity": np.array([9, 6, 9])}, {"capacity": Capacity.per_rank([9, 6, 9])}),
    ({"cost": "attention"}, {"cost": CostModel("attention")}),
    ({"policy": "packed", "seed": 4}, {"layout": "packed", "seed": 4}),
    ({"policy": "static packed"}, {"policy": "static", "layout": "packed"}),
    ({"layout": "packed", "capacity": 10_000}, {"layout": "packed"}),
    ({"speeds": [2.0, 2.0, 2.0], "accumulate": 2}, {"accumulate": 2}),
    ({"second": np.zeros_like(SECOND)}, {}),
    *(({"policy": name, "capacity": Capacity()}, {"policy": name}) for name in UNCAPPED),
], ids="-".join)  # fmt: skip
def test_what_says_the_same_gives_the_same(short, whole):
    assert list(sampler(**short)) == list(sampler(**whole))
    if "second" in short:
        sampler(**short).load_state_dict(sampler(**whole).state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "parts", "changes"),
    [
        ("partition", 1, {"second": SECOND, "second_weight": 0.5}),
        ("partition", 1, {"layout": "packed"}),
        *((*case, {"window": 2, "objective": objective}) for case in ACCUMULATED for objective in ("sum", "slots")),
    ],
)
def test_the_ranks_together_accumulate_the_plan(policy, parts, changes):
    planner = Planner(policy, Problem(LENGTHS, RANKS, BATCH, seed=4, micro_batches=parts, **changes))
    ranks = [sampler(rank, policy=policy, seed=4, accumulate=parts, **changes) for rank in range(RANKS)]
    for epoch in (0, 1):
        for one in ranks:
            one.set_epoch(epoch)
        batches = epoch_of(*ranks)
        assert len(batches) == len(ranks[0]) == STEPS * parts
        for step in range(STEPS):
            accumulated = batches[step * parts : (step + 1) * parts]
            assert accumulated == [list(part) for part in zip(*plain(planner.plan(epoch * STEPS + step)), strict=True)]
            weights = [ranks[0].weight(ids) / parts for part in accumulated for ids in part]
            assert sum(weights) == pytest.approx(RANKS), "the mean over ranks is that over the global batch"


@pytest.mark.parametrize("policy", UNCAPPED)
def test_a_capacity_that_a_policy_does_not_obey_is_refused(policy):
    for capacity in (8, [8, 5, 8], Capacity.uniform(8)):
        with pytest.raises(UsageError, match=f"capacity: policy '{policy}' obeys no capacities") as refused:
            sampler(policy=policy, capacity=capacity)
    assert refused.value.hint.removesuffix(".").split("one of ")[1].split(", ") == CAPPED


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
        ({"cost": None}, "None is not a cost type"),
        ({"cost": "measured"}, "'measured' says no coefficients\nhint: Give CostModel"),
        ({"capacity": [9, 0, 9]}, r"capacity\[1\]: 0"),
        ({"policy": "packed", "layout": "padded"}, "layout: .padded. with policy .packed.; use packed, or leave"),
        ({"layout": "rows"}, "use padded or packed"),
        ({"layout": "packed", "capacity": Capacity.uniform(8)}, "in samples, with micro-batches that are packed"),
        ({"policy": "token_budget"}, "varies the global batch"),
        ({"lengths": [3.5] * 20}, r"shape \(20,\) of float64\nhint: Give one whole number per sample"),
        ({"lengths": [[3]] * 20}, r"shape \(20, 1\)"),
        ({"capacity": 0}, "capacity: 0\nhint: Give a whole number of at least 1"),
        ({"window": 0}, "window: 0"),
        ({"accumulate": 0}, "accumulate: 0"),
        ({"accumulate": 5}, "5 on each of 3 ranks for 12 samples"),
        ({"accumulate": 2, "policy": "prefix"}, "2 with policy 'prefix'"),
        ({"accumulate": 2, "objective": "mean"}, "objective: 'mean'\nhint: Use sum or slots"),
        ({"accumulate": 2, "speeds": [1.0, 1.0, 2.0]}, "accumulate: 2 with ranks of unequal speed"),
        ({"second": [0.5] * 203}, "second: shape"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        PlannedBatchSampler(**{"lengths": LENGTHS, "world_size": 3, "rank": 0, "global_batch": 12, **changes})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(("done", value, r"state\['done'\]") for value in (-1, 17)),
        *(("epoch", value, r"state\['epoch'\]") for value in (-1, None)),
        ("version", 0, "not one of this version"),
    ],
)
def test_states_that_cannot_be_are_refused(key, value, message):
    one = sampler()
    with pytest.raises(UsageError, match=message):
        one.load_state_dict({**one.state_dict(), key: value})


def test_epochs_and_batches_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="epoch: -1"):
        sampler().set_epoch(-1)
    with pytest.raises(UsageError, match="done: 17\nhint: Give a whole number from 0 to 16"):
        sampler().state_dict(done=17)


def test_what_does_not_fit_is_said_while_iterating():
    with pytest.raises(NothingFits, match="12 samples do not fit"):
        list(sampler(capacity=3))


@pytest.mark.parametrize("changes", [{"objective": "slots"}, {"layout": "packed"}], ids=["slots", "packed"])
def test_ranks_of_unequal_speed_run_as_many_batches_in_slots_and_where_batches_are_packed(changes):
    ranks = [sampler(rank, speeds=[1.0, 1.0, 2.0], accumulate=2, **changes) for rank in range(RANKS)]
    seen = [i for batches in epoch_of(*ranks) for ids in batches for i in ids]
    assert len(seen) == len(set(seen)) == STEPS * BATCH


X, Y = torch.zeros(5, 7), torch.zeros(5, dtype=torch.int64)


@pytest.mark.parametrize(
    "batch",
    [
        np.int64(5), np.array(5), torch.tensor(5), range(5), array("q", [0] * 5), list(np.zeros(5, dtype=np.int32)),
        X, Y.numpy(), {"x": X, "y": Y, "scale": torch.tensor(2.0)}, UserDict(x=X, y=Y.numpy(), names=["a", "b"]),
    ],
    ids=lambda batch: f"{type(batch).__module__}.{type(batch).__name__}",
)  # fmt: skip
def test_the_weight_of_a_batch_is_its_share(batch):
    assert sampler().weight(batch) == 5 * RANKS / BATCH


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([X, Y], "a list does not tell"),
        ({"q": torch.zeros(2), "y": Y}, r"\{'q': 2, 'y': 5\}"),
        ({"names": ["a"] * 5}, r"first dimensions \{\}"),
        ("abcde", "a str does not tell"),
        (5.0, "a float does not tell"),
        (torch.tensor(5.0), "samples: tensor"),
        (None, "a NoneType does not tell"),
        ([], "samples: 0"),
        (BATCH + 1, "samples: 13\nhint: Give a whole number from 1 to 12"),
    ],
    ids=str,
)
def test_a_batch_whose_samples_are_not_clear_is_refused(batch, message):
    with pytest.raises(UsageError, match=message):
        sampler().weight(batch)


def test_target_weights_need_the_other_ranks():
    alone = PlannedBatchSampler(LENGTHS, 1, 0, BATCH)
    assert alone.weight(X, targets=np.int64(7)) == 1.0
    assert alone.target_weights([3, 0, torch.tensor(9)]) == [0.75, 0.0, 2.25]
    for one, targets, message in (
        (alone, 0, "targets: 0 on all ranks"),
        (alone, -1, "targets: -1"),
        (sampler(), 7, r"1 of the sampler's 3 ranks can be asked\nhint: .*init_process_group"),
        (sampler(accumulate=2), 5, "of one of the 2 batches of an optimizer step"),
    ):
        with pytest.raises(UsageError, match=message):
            one.weight(X, targets=targets)


def test_a_packed_row_weighs_what_its_samples_do_and_its_tensors_do_not_tell():
    one = sampler(policy="packed")
    row = PackedCollator()([{"input_ids": [7] * n, "labels": n % 2} for n in (3, 1, 4, 1, 5)])
    for batch in (row, UserDict(row), row["boundaries"], 5, [0] * 5):
        assert one.weight(batch) == 5 * RANKS / BATCH
    for batch in (row["input_ids"], row["labels"], {"input_ids": row["input_ids"]}):
        with pytest.raises(UsageError, match=r"tensors do not tell how many samples(.|\n)*targets="):
            one.weight(batch)

"""What the samplers of transformers deal, as the Trainer and accelerate hand it to the ranks."""

import importlib
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from unit.schedule.test_packed import heavy_tailed

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy

SAMPLERS = ["group_by_length", "hf_batch_rebalance"]


def plain(plan: StepPlan) -> list[list[list[int]]]:
    """Ids per rank and micro-batch."""
    return [[ids.tolist() for ids in share] for share in plan.shares]


def by_step(batches: Iterable[list[int]], parts: int) -> list[list[list[int]]]:
    """One rank's micro-batches, by the step that accumulates them; of an incomplete last step nothing."""
    return [list(step) for step in zip(*[iter(batches)] * parts, strict=False)]


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The order of each epoch, as the installed sampler gave it, behind the batch that it groups by."""
    given: list[list[int]] = []
    real = LengthGroupedSampler.__iter__

    def kept(sampler: LengthGroupedSampler) -> Iterator[int]:
        given.append([sampler.batch_size, *real(sampler)])
        return iter(given[-1][1:])

    monkeypatch.setattr(LengthGroupedSampler, "__iter__", kept)
    return given


@pytest.mark.parametrize("parts", [1, 2])
def test_group_by_length_is_the_installed_sampler_behind_a_sharded_loader(orders, parts):
    problem = Problem(heavy_tailed(70), 2, 16, micro_batches=parts)
    plans = list(islice(make_policy("group_by_length", problem).plans(), 8))  # 4 steps an epoch, 6 samples left over
    assert [plan.step for plan in plans] == list(range(8))
    assert [order[0] for order in orders] == [8, 8], "the Trainer groups what a rank takes in a step"
    for epoch, (_, *order) in enumerate(orders):
        loader = BatchSampler(order, 8 // parts, drop_last=True)
        for rank in range(2):
            shard = BatchSamplerShard(loader, num_processes=2, process_index=rank)
            dealt = [plain(plan)[rank] for plan in plans[4 * epoch : 4 * epoch + 4]]
            assert dealt == by_step(shard, parts)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("start", [1, 3, 4, 6])
def test_plans_from_a_step_on_are_those_of_the_run_from_there(name, start):
    policy = make_policy(name, Problem(heavy_tailed(70), 2, 16, micro_batches=2))
    whole, later = list(islice(policy.plans(), 9)), list(islice(policy.plans(start), 9 - start))
    assert [plan.step for plan in whole] == list(range(9))
    assert [plan.step for plan in later] == list(range(start, 9))
    assert list(map(plain, later)) == list(map(plain, whole[start:]))
    assert all(plan.sample_ids().dtype == np.int64 for plan in whole)


def test_batch_rebalance_is_the_installed_sampler():
    lengths = heavy_tailed(64, high=300)
    found = next(make_policy("hf_batch_rebalance", Problem(lengths, 4, 64, order="file")).plans())
    for rank, share in enumerate(found.shares):
        sampler = BatchRebalanceSampler(lengths.tolist(), 64, dp_size=4, grad_accum=1, shuffle=False, rank=rank)
        assert share[0].tolist() == next(iter(sampler))


@pytest.mark.parametrize("parts", [2, 3])
def test_batch_rebalance_accumulates_as_the_installed_sampler_does(parts):
    lengths = heavy_tailed(64)
    policy = make_policy("hf_batch_rebalance", Problem(lengths, 2, 32, order="file", micro_batches=parts))
    plans = list(islice(policy.plans(), 2))
    for rank in range(2):
        sampler = BatchRebalanceSampler(lengths.tolist(), 32, dp_size=2, grad_accum=parts, shuffle=False, rank=rank)
        assert [plain(plan)[rank] for plan in plans] == by_step(sampler, parts)


def test_batch_rebalance_gives_the_fastest_rank_the_dearest_micro_batch():
    problem = Problem(heavy_tailed(32), 4, 32, order="file")
    dealt = plain(next(make_policy("hf_batch_rebalance", problem).plans()))
    speeds = np.array([1.0, 4.0, 2.0, 3.0])
    uneven = Problem(problem.lengths, 4, 32, order="file", speeds=speeds)
    plan = next(make_policy("hf_batch_rebalance", uneven).plans())
    assert sorted(plain(plan)) == sorted(dealt)
    costs = step_costs(plan, uneven) * uneven.relative_speeds()
    assert np.argsort(costs).tolist() == np.argsort(speeds).tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_as_many_micro_batches_as_the_capacities_ask_for_is_one_where_none_are_known(name):
    lengths = heavy_tailed(64)
    one, auto = (make_policy(name, Problem(lengths, 2, 32, micro_batches=parts)) for parts in (1, "auto"))
    assert list(map(plain, islice(auto.plans(), 3))) == list(map(plain, islice(one.plans(), 3)))


@pytest.mark.parametrize(
    ("batch", "parts", "ranks"), [(9, 1, "2 ranks"), (9, "auto", "2 ranks"), (6, 2, "2 ranks times 2 micro-batches")]
)
def test_group_by_length_needs_equal_counts(batch, parts, ranks):
    with pytest.raises(UsageError) as caught:
        make_policy("group_by_length", Problem(heavy_tailed(100), 2, batch, micro_batches=parts))
    assert caught.value.message == f"train.global_batch: {batch} is not a multiple of the {ranks}"
    assert caught.value.hint == "group_by_length deals equal counts."


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_the_samplers_need_is_said(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=f"{name} needs transformers and torch") as caught:
        make_policy(name, Problem(np.array([1, 2]), 2, 2))
    assert caught.value.hint == "pip install transformers torch"
    assert "torch" in str(POLICIES[name].missing)


def test_an_older_transformers_is_named(monkeypatch):
    module = importlib.import_module("transformers.trainer_pt_utils")
    monkeypatch.delattr(module, "BatchRebalanceSampler")
    with pytest.raises(UsageError) as caught:
        make_policy("hf_batch_rebalance", Problem(np.array([1, 2]), 2, 2))
    assert caught.value.message == "hf_batch_rebalance: the installed transformers has no BatchRebalanceSampler"
    assert caught.value.hint == "Install transformers 5.23 or later."

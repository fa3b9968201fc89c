"""What the samplers of transformers deal, as the Trainer and accelerate hand it to the ranks."""

import importlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from plan_rules import first_plan, heavy_tailed, plain, plans_of, problem_of
from torch.utils.data import BatchSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.evaluate import step_costs
from dynbench.schedule.policy import Problem, make_policy

SAMPLERS = ["group_by_length", "hf_batch_rebalance"]


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
    plans = plans_of("group_by_length", problem, 8)  # 4 steps an epoch, 6 samples left over
    assert [order[0] for order in orders] == [8, 8], "the Trainer groups what a rank takes in a step"
    for epoch, (_, *order) in enumerate(orders):
        loader = BatchSampler(order, 8 // parts, drop_last=True)
        for rank in range(2):
            shard = BatchSamplerShard(loader, num_processes=2, process_index=rank)
            dealt = [plain(plan)[rank] for plan in plans[4 * epoch : 4 * epoch + 4]]
            assert dealt == by_step(shard, parts)


@pytest.mark.parametrize(("samples", "ranks", "batch", "parts"), [(64, 4, 64, 1), (64, 2, 32, 2), (64, 2, 32, 3)])
def test_batch_rebalance_is_the_installed_sampler_and_accumulates_as_it_does(samples, ranks, batch, parts):
    problem = problem_of(heavy_tailed(samples, high=300), ranks, batch, micro_batches=parts)
    plans = plans_of("hf_batch_rebalance", problem, samples // batch)
    for rank in range(ranks):
        sampler = BatchRebalanceSampler(
            problem.lengths.tolist(), batch, dp_size=ranks, grad_accum=parts, shuffle=False, rank=rank
        )
        assert [plain(plan)[rank] for plan in plans] == by_step(sampler, parts)


def test_batch_rebalance_gives_the_fastest_rank_the_dearest_micro_batch():
    speeds = np.array([1.0, 4.0, 2.0, 3.0])
    uneven = problem_of(heavy_tailed(32), 4, speeds=speeds)
    plan = first_plan("hf_batch_rebalance", uneven)
    assert sorted(plain(plan)) == sorted(plain(first_plan("hf_batch_rebalance", problem_of(uneven.lengths, 4))))
    costs = step_costs(plan, uneven) * uneven.relative_speeds()
    assert np.argsort(costs).tolist() == np.argsort(speeds).tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_as_many_micro_batches_as_the_capacities_ask_for_is_one_where_none_are_known(name):
    one, auto = (plans_of(name, Problem(heavy_tailed(64), 2, 32, micro_batches=parts), 3) for parts in (1, "auto"))
    assert list(map(plain, auto)) == list(map(plain, one))


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
        make_policy(name, problem_of([1, 2]))
    assert caught.value.hint == "pip install transformers torch"
    assert "torch" in str(POLICIES[name].missing)


def test_an_older_transformers_is_named(monkeypatch):
    module = importlib.import_module("transformers.trainer_pt_utils")
    monkeypatch.delattr(module, "BatchRebalanceSampler")
    with pytest.raises(UsageError) as caught:
        make_policy("hf_batch_rebalance", problem_of([1, 2]))
    assert caught.value.message == "hf_batch_rebalance: the installed transformers has no BatchRebalanceSampler"
    assert caught.value.hint == "Install transformers 5.23 or later."

"""Balancers of others by their rules, and the samplers of transformers as the Trainer deals them."""

import importlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rules import first_plan, heavy_tailed, judge_plan, plain, plans_of, problem_of
from torch.utils.data import BatchSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.peers.base import to_ranks
from dynbench.schedule.policy import Problem, make_policy

INSTALLED = [name for name in POLICIES if POLICIES[name].missing is None]


TWOS, ONES = list(range(0, 32, 2)), list(range(1, 32, 2))


@pytest.mark.parametrize(
    ("name", "workers", "expected"),
    [
        ("sorted_equal", 4, [[ONES[:8]], [ONES[8:]], [TWOS[:8]], [TWOS[8:]]]),
        ("karmarkar_karp_equal", 32, [[[sample]] for sample in ONES + TWOS]),
    ],
)
def test_samples_of_one_length_stay_in_the_order_of_arrival_on_every_machine(name, workers, expected):
    """Of two lengths in turn; numpy's default sort would mix those of one length."""
    assert plain(first_plan(name, problem_of(np.resize([2, 1], 32), workers))) == expected


def test_so_they_do_in_the_token_budget():
    rows = make_policy("token_budget", problem_of(np.resize([2, 1], 32), 4)).micro_batches(0)
    assert np.concatenate(sorted(rows, key=lambda ids: (ids[0] % 2, ids[0]))).tolist() == TWOS + ONES


def test_sets_of_one_sum_stay_in_their_order_on_every_machine():
    """Merged, the two tuples sum to 17 and 18 in turn."""
    lengths = np.sort([*range(1, 9), *range(1, 9), *range(10, 17), *range(10, 17), 9, 17])
    found = make_policy("karmarkar_karp_equal", problem_of(lengths, 16)).groups(np.arange(32))
    assert [sorted(ids.tolist()) for ids in found] == [[15 - i, 16 + i] for i in (*range(0, 16, 2), *range(1, 16, 2))]


def test_groups_of_one_cost_and_ranks_of_one_speed_stay_in_their_order():
    problem = problem_of(np.resize([2, 1], 32), 32, speeds=np.resize([1.0, 2.0], 32))
    ordered = np.concatenate(to_ranks([np.array([sample]) for sample in range(32)], problem)).tolist()
    assert ordered[1::2] == TWOS, "the fast take the long"
    assert ordered[0::2] == ONES


def differenced(lengths: list[int], ranks: int) -> list[int]:
    """Sums of balanced largest differencing by its rule, on lists of sums; what is missing to equal counts weighs 0."""
    falling = sorted([*lengths, *[0] * (-len(lengths) % ranks)], reverse=True)
    tuples = [falling[first : first + ranks] for first in range(0, len(falling), ranks)]
    while len(tuples) > 1:
        tuples.sort(key=lambda sums: min(sums) - max(sums))
        one, other, *rest = tuples
        tuples = [[a + b for a, b in zip(sorted(one), sorted(other, reverse=True), strict=True)], *rest]
    return sorted(tuples[0])


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(0, 12), st.sampled_from([1.0, 2.0**-24]))
def test_differencing_with_equal_counts_keeps_to_its_rule(seed, ranks, more, beta):
    lengths = np.random.default_rng(seed).integers(1, 10**6, ranks + more)
    plan = first_plan("karmarkar_karp_equal", problem_of(lengths, ranks, cost=CostModel("measured", beta=beta)))
    sums = sorted(int(lengths[ids].sum()) for (ids,) in plan.shares)
    assert sums == differenced(lengths.tolist(), ranks)
    assert max(plan.local_batches) - min(plan.local_batches) <= 1


@pytest.mark.skipif("karmarkar_karp" not in INSTALLED, reason="prtpy is not installed")
def test_differencing_of_samples_that_cost_nothing_leaves_no_rank_idle():
    problem = problem_of([3, 4, 5, 6, 7], 3, cost=CostModel("measured", alpha=5.0, beta=0.0))
    idle = make_policy("karmarkar_karp", problem).groups(np.arange(5))
    assert min(map(len, idle)) == 0, "prtpy leaves one without"
    judge_plan(first_plan("karmarkar_karp", problem), problem, range(5))


SAMPLERS = ["group_by_length", "hf_batch_rebalance"]


@pytest.mark.parametrize(
    ("name", "package", "message", "hint"),
    [
        ("karmarkar_karp", "prtpy", "the package prtpy (", "pip install prtpy"),
        *((name, "torch", "transformers and torch", "pip install transformers torch") for name in SAMPLERS),
    ],
)
def test_what_a_peer_needs_is_said(monkeypatch, name, package, message, hint):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as caught:
        make_policy(name, problem_of([1, 2]))
    assert caught.value.message.startswith(f"{name} needs {message}")
    assert caught.value.hint == hint and package in str(POLICIES[name].missing)


def steps_of(lengths: list[int], ranks: int, budget: int) -> float:
    """Batches over G, of a reader that fills each with as many of the sorted samples as the budget holds."""
    batches, size, longest = 1, 0, 0
    for length in sorted(lengths, reverse=True):
        if size and (size + 1) * longest > budget:
            batches, size = batches + 1, 0
        size, longest = size + 1, longest if size else length
    return batches / ranks


@given(st.lists(st.integers(1, 40), min_size=6, max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_steps_are_within_the_least_budget_that_has_as_many_samples_in_the_mean_step(lengths, ranks, each):
    batch = ranks * each
    problem = problem_of(lengths, ranks, batch)
    budget = make_policy("token_budget", problem).budget_tokens
    steps, most = max(1, len(lengths) / batch), max(lengths) * batch
    enough = (tokens for tokens in range(max(lengths), most) if steps_of(lengths, ranks, tokens) <= steps)
    assert budget == next(enough, most)
    for plan in plans_of("token_budget", problem, 2) if batch <= len(lengths) else ():
        judge_plan(plan, problem, fixed_batch=False)
        assert step_facts(plan, problem).padded_tokens.max() <= budget


def test_token_budget_keeps_to_the_capacity_where_its_budget_makes_fewer_batches_than_ranks():
    """The long one and two batches of short ones are three; cut into equal counts, 7 stood beside the long one."""
    problem = problem_of([1] * 30 + [100], 4, capacity=Capacity.table([[(10, 20), (100, 2)]]))
    plan = first_plan("token_budget", problem)
    judge_plan(plan, problem, range(31), fixed_batch=False)
    most = make_policy("token_budget", problem).budget_tokens
    assert step_facts(plan, problem).padded_tokens.max() <= most == 100
    assert sorted(len(share[0]) for share in plan.shares) == [1, 10, 10, 10]


def test_the_dearest_group_is_on_the_fastest_rank_by_what_its_samples_cost_besides():
    problem = problem_of([4] * 4, speeds=np.array([1.0, 2.0]), second=np.array([0, 0, 50, 50]))
    assert plain(first_plan("sorted_equal", problem)) == [[[0, 1]], [[2, 3]]]


@pytest.mark.parametrize("name", [name for name in INSTALLED if not POLICIES[name].capped])
def test_a_baseline_without_capacities_is_known_as_one(name):
    """What `capped = False` says is true: somewhere it exceeds a capacity that partition keeps."""
    table, layout = [[(64, 32), (128, 16), (256, 8), (512, 4), (1024, 2)]], POLICIES[name].layouts[0]
    capacity = Capacity.table(table) if layout == "padded" else PackedCapacity.uniform(1200)
    problem = Problem(heavy_tailed(4_000), 4, 16, capacity=capacity, layout=layout)
    assert any(step_facts(plan, problem).capacity_violations for plan in plans_of(name, problem, 200))


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


@pytest.mark.parametrize(("batch", "parts", "ranks"), [(9, "auto", "2 ranks"), (6, 2, "2 ranks times 2 micro-batches")])
def test_group_by_length_needs_equal_counts(batch, parts, ranks):
    with pytest.raises(UsageError) as caught:
        make_policy("group_by_length", Problem(heavy_tailed(100), 2, batch, micro_batches=parts))
    assert caught.value.message == f"train.global_batch: {batch} is not a multiple of the {ranks}"
    assert caught.value.hint == "group_by_length deals equal counts."


def test_an_older_transformers_is_named(monkeypatch):
    module = importlib.import_module("transformers.trainer_pt_utils")
    monkeypatch.delattr(module, "BatchRebalanceSampler")
    with pytest.raises(UsageError) as caught:
        make_policy("hf_batch_rebalance", problem_of([1, 2]))
    assert caught.value.message == "hf_batch_rebalance: the installed transformers has no BatchRebalanceSampler"
    assert caught.value.hint == "Install transformers 5.23 or later."

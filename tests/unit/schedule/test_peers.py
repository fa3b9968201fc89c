import sys
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedule.test_packed import heavy_tailed

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.peers.base import to_ranks
from dynbench.schedule.policy import Problem, make_policy

BATCH_PEERS = ("sorted_equal", "lpt", "karmarkar_karp_equal")
UNCAPPED = [name for name in POLICIES if not POLICIES[name].capped]


def problem_of(lengths, workers, batch=None, **changes) -> Problem:
    lengths = np.asarray(lengths, dtype=np.int64)
    return Problem(lengths, workers, batch or len(lengths), order="file", **changes)


def groups(name, problem) -> list[list[int]]:
    """Lengths per rank of the first step, sorted."""
    plan = next(make_policy(name, problem).plans())
    return [sorted(problem.lengths[np.concatenate(share)].tolist()) for share in plan.shares]


def test_sorted_equal_cuts_the_sorted_batch():
    assert groups("sorted_equal", problem_of([9, 1, 8, 2, 7, 3], 3)) == [[1, 2], [3, 7], [8, 9]]


@pytest.mark.parametrize("name", ["sorted_equal", "karmarkar_karp_equal"])
def test_equal_counts_gain_nothing_in_the_maximum(name):
    problem = Problem(heavy_tailed(4_096), 8, 64)
    static = make_policy("static", problem)
    peer = make_policy(name, problem)
    for plain, dealt in islice(zip(static.plans(), peer.plans(), strict=False), 20):
        assert step_costs(dealt, problem).max() == step_costs(plain, problem).max()


def test_lpt_by_hand():
    # 7 | 6 | 5, then 4 to the 5, 3 to the 6, 2 to the 7.
    assert groups("lpt", problem_of([2, 3, 4, 5, 6, 7], 3)) == [[2, 7], [3, 6], [4, 5]]


def test_lpt_is_within_grahams_bound_of_the_best_sums():
    rng = np.random.default_rng(3)
    for _ in range(30):
        ranks = int(rng.integers(2, 4))
        lengths = rng.integers(1, 30, 7)
        best = min(
            max(sum(n for n, owner in zip(lengths, owners, strict=True) if owner == rank) for rank in range(ranks))
            for owners in product(range(ranks), repeat=len(lengths))
        )
        found = max(map(sum, groups("lpt", problem_of(lengths, ranks))))
        assert best <= found <= (4 / 3 - 1 / (3 * ranks)) * best


def twos_and_ones(name: str, workers: int, **changes) -> list[list[int]]:
    """Ids per rank of 32 samples of two lengths in turn; numpy's default sort would mix those of one length."""
    plan = next(make_policy(name, problem_of(np.resize([2, 1], 32), workers, **changes)).plans())
    return [np.concatenate(share).tolist() for share in plan.shares]


def test_samples_of_one_length_stay_in_the_order_of_arrival_on_every_machine():
    twos, ones = list(range(0, 32, 2)), list(range(1, 32, 2))
    assert twos_and_ones("sorted_equal", 4) == [ones[:8], ones[8:], twos[:8], twos[8:]]
    assert twos_and_ones("karmarkar_karp_equal", 32) == [[sample] for sample in ones + twos]
    budget = make_policy("token_budget", problem_of(np.resize([2, 1], 32), 4))
    assert np.concatenate(sorted(budget.micro_batches(0), key=lambda ids: (ids[0] % 2, ids[0]))).tolist() == twos + ones


def test_sets_of_one_sum_stay_in_their_order_on_every_machine():
    """Merged, the two tuples sum to 17 and 18 in turn."""
    lengths = np.sort([*range(1, 9), *range(1, 9), *range(10, 17), *range(10, 17), 9, 17])
    found = make_policy("karmarkar_karp_equal", problem_of(lengths, 16)).groups(np.arange(32))
    assert [sorted(ids.tolist()) for ids in found] == [[15 - i, 16 + i] for i in (*range(0, 16, 2), *range(1, 16, 2))]


def test_groups_of_one_cost_and_ranks_of_one_speed_stay_in_their_order():
    speeds = np.resize([1.0, 2.0], 32)
    lengths = np.resize([2, 1], 32)
    dealt = to_ranks([np.array([sample]) for sample in range(32)], problem_of(lengths, 32, speeds=speeds))
    ordered = np.concatenate(dealt).tolist()
    assert ordered[1::2] == list(range(0, 32, 2)), "the fast take the long"
    assert ordered[0::2] == list(range(1, 32, 2))


@pytest.mark.parametrize("name", BATCH_PEERS)
def test_no_rank_sits_out_a_step(name):
    slow = problem_of([100, 1, 1], 3, speeds=np.array([1000.0, 1.0, 1.0]))
    assert sorted(map(len, groups(name, slow))) == [1, 1, 1]


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
    cost = CostModel("measured", beta=beta)
    found = groups("karmarkar_karp_equal", problem_of(lengths, ranks, cost=cost))
    assert sorted(map(sum, found)) == differenced(lengths.tolist(), ranks)
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_differencing_with_counts_that_do_not_divide():
    assert sorted(map(len, groups("karmarkar_karp_equal", problem_of(range(1, 12), 4)))) == [2, 3, 3, 3]


@pytest.mark.skipif(POLICIES["karmarkar_karp"].missing is not None, reason="prtpy is not installed")
def test_differencing_with_any_counts_is_prtpys():
    found = groups("karmarkar_karp", problem_of([4, 5, 6, 7, 8], 2))
    assert sorted(found) == [[4, 5, 7], [6, 8]]


@pytest.mark.skipif(POLICIES["karmarkar_karp"].missing is not None, reason="prtpy is not installed")
def test_differencing_of_samples_that_cost_nothing_leaves_no_rank_idle():
    flat = CostModel("measured", alpha=5.0, beta=0.0)
    policy = make_policy("karmarkar_karp", problem_of([3, 4, 5, 6, 7], 3, cost=flat))
    assert min(map(len, policy.groups(np.arange(5)))) == 0, "prtpy leaves one without"
    plan = next(policy.plans())
    assert min(plan.local_batches) > 0
    assert sorted(plan.sample_ids().tolist()) == list(range(5))


def test_differencing_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "prtpy", None)
    with pytest.raises(UsageError) as caught:
        make_policy("karmarkar_karp", problem_of([1, 2], 2))
    assert caught.value.message.startswith("karmarkar_karp needs the package prtpy (")
    assert caught.value.hint == "pip install prtpy"
    assert "prtpy" in str(POLICIES["karmarkar_karp"].missing)


def steps_of(lengths: list[int], ranks: int, budget: int) -> float:
    """Batches over G, of a reader that fills each with as many of the sorted samples as the budget holds."""
    batches, size, longest = 1, 0, 0
    for length in sorted(lengths, reverse=True):
        if size and (size + 1) * longest > budget:
            batches, size = batches + 1, 0
        size, longest = size + 1, longest if size else length
    return batches / ranks


@given(st.lists(st.integers(1, 40), min_size=6, max_size=30), st.integers(1, 3), st.integers(1, 3))
def test_no_smaller_budget_has_as_many_samples_in_the_mean_step(lengths, ranks, each):
    batch = ranks * each
    budget = make_policy("token_budget", problem_of(lengths, ranks, batch)).budget_tokens
    enough = [
        t
        for t in range(max(lengths), max(lengths) * batch + 1)
        if steps_of(lengths, ranks, t) <= max(1, len(lengths) / batch)
    ]
    assert budget == (enough[0] if enough else max(lengths) * batch)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=6, max_size=30), st.integers(1, 4), st.integers(1, 6))
def test_token_budget_keeps_its_rules_from_any_step_on(lengths, ranks, start):
    policy = make_policy("token_budget", problem_of(lengths, ranks, ranks))
    whole, later = list(islice(policy.plans(), start + 3)), list(islice(policy.plans(start), 3))
    assert [plan.step for plan in whole] == list(range(start + 3))
    assert [plan.step for plan in later] == list(range(start, start + 3))
    for plan, again in zip(whole[start:], later, strict=True):
        assert [ids.tolist() for (ids,) in again.shares] == [ids.tolist() for (ids,) in plan.shares]
        assert len(plan.shares) == ranks
        assert step_facts(plan, policy.problem).padded_tokens.max() <= policy.budget_tokens
        assert min(plan.local_batches) > 0


def test_token_budget_keeps_to_the_capacity_where_its_budget_makes_fewer_batches_than_ranks():
    """The long one and two batches of short ones are three; cut into equal counts, 7 stood beside the long one."""
    capacity = Capacity.table([[(10, 20), (100, 2)]])
    problem = problem_of([1] * 30 + [100], 4, capacity=capacity)
    policy = make_policy("token_budget", problem)
    plan = next(policy.plans())
    facts = step_facts(plan, problem)
    assert facts.capacity_violations == 0
    assert facts.padded_tokens.max() <= policy.budget_tokens == 100
    assert sorted(plan.sample_ids().tolist()) == list(range(31))


def test_token_budget_keeps_to_the_capacity():
    problem = Problem(heavy_tailed(1_000), 2, 16, capacity=Capacity.table([[(64, 12), (2048, 3)]]))
    plans = list(islice(make_policy("token_budget", problem).plans(), 30))
    assert sum(step_facts(plan, problem).capacity_violations for plan in plans) == 0
    with pytest.raises(NothingFits, match="longer than a rank's capacity"):
        make_policy("token_budget", Problem(heavy_tailed(100), 2, 16, capacity=Capacity.table([[(64, 12)]])))


@pytest.mark.parametrize("name", [name for name in UNCAPPED if POLICIES[name].missing is None])
def test_a_baseline_without_capacities_is_known_as_one(name):
    """What `capped = False` says is true: somewhere it exceeds a capacity that partition keeps."""
    table, layout = [[(64, 32), (128, 16), (256, 8), (512, 4), (1024, 2)]], POLICIES[name].layouts[0]
    capacity = Capacity.table(table) if layout == "padded" else PackedCapacity.uniform(1200)
    problem = Problem(heavy_tailed(4_000), 4, 16, capacity=capacity, layout=layout)
    plans = islice(make_policy(name, problem).plans(), 200)
    assert sum(step_facts(plan, problem).capacity_violations for plan in plans) > 0

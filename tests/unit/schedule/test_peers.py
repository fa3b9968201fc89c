import sys
from itertools import islice, product

import numpy as np
import pytest

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_costs, step_facts
from dynbench.schedule.peers.base import fill_empty
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


def heavy_tailed(n, seed=0, high=1024):
    return np.clip(np.random.default_rng(seed).lognormal(5, 1, n).astype(np.int64), 16, high)


def test_sorted_equal_cuts_the_sorted_batch():
    assert groups("sorted_equal", problem_of([9, 1, 8, 2, 7, 3], 3)) == [[1, 2], [3, 7], [8, 9]]


def test_sorted_equal_gives_the_remainder_to_the_short():
    assert groups("sorted_equal", problem_of([9, 1, 8, 2, 7], 2)) == [[1, 2, 7], [8, 9]]


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


def test_lpt_loads_ranks_by_their_speed():
    sums = [sum(group) for group in groups("lpt", problem_of(heavy_tailed(200), 2, speeds=np.array([3.0, 1.0])))]
    assert sums[0] / sums[1] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("name", BATCH_PEERS)
def test_no_rank_sits_out_a_step(name):
    slow = problem_of([100, 1, 1], 3, speeds=np.array([1000.0, 1.0, 1.0]))
    assert sorted(map(len, groups(name, slow))) == [1, 1, 1]


def test_the_dearest_group_goes_to_the_fastest_rank():
    found = groups("sorted_equal", problem_of([9, 1, 8, 2, 7, 3], 3, speeds=np.array([2.0, 3.0, 1.0])))
    assert found == [[3, 7], [8, 9], [1, 2]]


def test_an_empty_group_is_filled_from_the_largest():
    filled = fill_empty([np.array([1, 2, 3]), np.array([], dtype=int), np.array([4])])
    assert [ids.tolist() for ids in filled] == [[1, 2], [3], [4]]


def test_differencing_with_equal_counts_by_hand():
    # (8 7) and (6 5), spreads 1 and 1, merge to (8 5 | 7 6).
    assert sorted(groups("karmarkar_karp_equal", problem_of([5, 6, 7, 8], 2))) == [[5, 8], [6, 7]]


def test_differencing_with_equal_counts_balances_what_static_does_not():
    problem = problem_of(heavy_tailed(512), 8)
    sums = [sum(group) for group in groups("karmarkar_karp_equal", problem)]
    assert {len(group) for group in groups("karmarkar_karp_equal", problem)} == {64}
    assert max(sums) < 1.01 * np.mean(sums) < max(sum(group) for group in groups("static", problem))


def test_differencing_with_counts_that_do_not_divide():
    assert sorted(map(len, groups("karmarkar_karp_equal", problem_of(range(1, 12), 4)))) == [2, 3, 3, 3]


@pytest.mark.skipif(POLICIES["karmarkar_karp"].missing is not None, reason="prtpy is not installed")
def test_differencing_with_any_counts_is_prtpys():
    found = groups("karmarkar_karp", problem_of([4, 5, 6, 7, 8], 2))
    assert sorted(found) == [[4, 5, 7], [6, 8]]


def test_differencing_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "prtpy", None)
    with pytest.raises(UsageError, match="prtpy") as caught:
        make_policy("karmarkar_karp", problem_of([1, 2], 2))
    assert caught.value.hint == "pip install prtpy"
    assert "prtpy" in str(POLICIES["karmarkar_karp"].missing)


def test_token_budget_keeps_every_batch_within_its_budget():
    problem = Problem(heavy_tailed(3_000), 4, 64, cost=CostModel(pad_to_multiple_of=8))
    policy = make_policy("token_budget", problem)
    plans = list(islice(policy.plans(), 40))
    facts = [step_facts(plan, problem) for plan in plans]
    assert max(f.padded_tokens.max() for f in facts) <= policy.budget_tokens
    assert np.mean([f.local_batches.sum() for f in facts]) == pytest.approx(64, rel=0.1)
    assert len({int(f.local_batches.sum()) for f in facts}) > 5


def test_token_budget_uses_every_sample_once_an_epoch():
    problem = Problem(heavy_tailed(1_000), 2, 16)
    policy = make_policy("token_budget", problem)
    taken = np.concatenate([plan.sample_ids() for plan in islice(policy.plans(), policy.steps_per_epoch)])
    assert len(taken) == len(set(taken.tolist())) > 900


def test_token_budget_drops_an_incomplete_last_step():
    policy = make_policy("token_budget", Problem(np.array([9, 23, 47, 6]), 2, 2, seed=3))
    first, second = islice(policy.plans(), 2)
    assert policy.steps_per_epoch == 1
    assert len(first.sample_ids()) == len(set(first.sample_ids())) < 4
    assert set(first.sample_ids()) & set(second.sample_ids())


def test_token_budget_gives_every_rank_a_batch_where_its_budget_makes_fewer():
    """Of 5 samples one rank takes two; the other batch of two that the budget would hold is split."""
    policy = make_policy("token_budget", problem_of([4] * 5, 4))
    assert policy.budget_tokens == 8
    plan = next(policy.plans())
    assert sorted(plan.local_batches) == [1, 1, 1, 2]
    assert sorted(plan.sample_ids().tolist()) == list(range(5))


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


@pytest.mark.slow
def test_zero_violations_where_uncapped_balancers_violate():
    """10,000 random heavy-tailed batches that fit: the baselines exceed capacities that partition always keeps."""
    capacity = Capacity.table([[(64, 32), (128, 16), (256, 8), (512, 5), (1024, 3)]])
    problem = Problem(heavy_tailed(200_000), 4, 16, capacity=capacity)
    policies = {name: make_policy(name, problem) for name in ("partition", "lpt", "karmarkar_karp_equal")}
    violating = dict.fromkeys(policies, 0)
    solved = 0
    for batch in problem.data_order().epoch_batches(0):
        try:
            plans = {name: policy.deal([batch], 0)[0] for name, policy in policies.items()}
        except NothingFits:
            continue
        for name, plan in plans.items():
            violating[name] += step_facts(plan, problem).capacity_violations > 0
        solved += 1
        if solved == 10_000:
            break
    assert solved == 10_000
    assert violating["partition"] == 0
    assert violating["lpt"] > 1_000
    assert violating["karmarkar_karp_equal"] > 1_000


@pytest.mark.parametrize("name", [name for name in UNCAPPED if POLICIES[name].missing is None])
def test_a_baseline_without_capacities_is_known_as_one(name):
    """What `capped = False` says is true: somewhere it exceeds a capacity that partition keeps."""
    capacity = Capacity.table([[(64, 32), (128, 16), (256, 8), (512, 4), (1024, 2)]])
    problem = Problem(heavy_tailed(4_000), 4, 16, capacity=capacity)
    plans = islice(make_policy(name, problem).plans(), 200)
    assert sum(step_facts(plan, problem).capacity_violations for plan in plans) > 0

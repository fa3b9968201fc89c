"""The solvers of `prefix` against plain brute force over all counts."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.schedule import prefix_counts as prefix_variance
from dynbench.schedule.cost import CostModel
from dynbench.schedule.measure import HEURISTICS, gap
from dynbench.schedule.prefix_counts import all_counts, number_of_counts, solve_counts

COSTS = [CostModel("tokens"), CostModel("tokens_sq"), CostModel("attention", attention_a=0.02)]


def draw_costs(rng: np.random.Generator, ranks: int, buffer: int, kind: int) -> np.ndarray:
    """Prefix costs of heavy-tailed lengths, or any non-decreasing rows, shape [G, K]."""
    if kind == len(COSTS):
        return np.cumsum(rng.exponential(size=(ranks, buffer)) * rng.integers(0, 2, (ranks, buffer)), axis=1) + 1
    lengths = np.clip(rng.lognormal(2, 1, (ranks, buffer)).astype(int), 1, 60)
    return COSTS[kind].cost_padded(np.arange(1, buffer + 1), np.maximum.accumulate(lengths, axis=1))


def within(costs: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The costs, infinite beyond each rank's limit."""
    return np.where(np.arange(1, costs.shape[1] + 1) <= limits[:, None], costs, np.inf)


def objectives(costs: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    chosen = costs[np.arange(len(costs)), counts - 1]
    return chosen.max(), chosen.var()


def same(costs, ours, theirs) -> bool:
    """Equal in both objectives, up to rounding."""
    (our_max, our_variance), (their_max, their_variance) = objectives(costs, ours), objectives(costs, theirs)
    return our_max == their_max and abs(our_variance - their_variance) <= 1e-9 * their_max**2


INSTANCE = st.tuples(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6), st.integers(0, len(COSTS)), st.data())


@pytest.mark.slow
@settings(max_examples=300)
@given(INSTANCE)
def test_enumeration_is_brute_force(instance):
    seed, ranks, buffer, kind, data = instance
    costs = draw_costs(np.random.default_rng(seed), ranks, buffer, kind)
    limits = np.array(data.draw(st.lists(st.integers(1, buffer), min_size=ranks, max_size=ranks)))
    batch = data.draw(st.integers(ranks, int(limits.sum())))
    counts = solve_counts(within(costs, limits), batch, "enumerate").counts
    ways = [way for way in product(*(range(1, limit + 1) for limit in limits)) if sum(way) == batch]
    best = min(ways, key=lambda way: objectives(costs, np.array(way)))
    assert counts.sum() == batch
    assert (counts <= limits).all()
    assert same(costs, counts, np.array(best))


@pytest.mark.slow
@pytest.mark.parametrize("inline", ["as chosen", "hull"])
@pytest.mark.parametrize("kind", range(len(COSTS) + 1))
def test_exact_equals_enumeration_on_thousands_of_instances(kind, inline, monkeypatch):
    if inline == "hull":
        monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 0)
    rng = np.random.default_rng([kind, inline == "hull"])
    for _ in range(1000):
        ranks, buffer = int(rng.integers(1, 6)), int(rng.integers(1, 10))
        costs = draw_costs(rng, ranks, buffer, kind)
        if rng.random() < 0.3:
            costs[rng.integers(ranks)] += costs.max() * rng.random()
        limits = rng.integers(1, buffer + 1, ranks)
        batch = int(rng.integers(ranks, limits.sum() + 1))
        exact, reference = (solve_counts(within(costs, limits), batch, name) for name in ("exact", "enumerate"))
        greedy = solve_counts(within(costs, limits), batch, "greedy")
        assert exact.exact == "both"
        assert exact.counts.sum() == greedy.counts.sum() == batch
        assert (exact.counts <= limits).all() and (greedy.counts <= limits).all()
        assert same(costs, exact.counts, reference.counts)
        assert objectives(costs, greedy.counts)[0] == objectives(costs, reference.counts)[0]


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(2, 12), st.integers(0, len(COSTS)), st.data())
def test_greedy_is_the_rule_sample_by_sample(seed, ranks, buffer, kind, data):
    costs = draw_costs(np.random.default_rng(seed), ranks, buffer, kind)
    batch = data.draw(st.integers(ranks, ranks * buffer))
    counts = np.ones(ranks, dtype=int)
    for _ in range(batch - ranks):
        following = [costs[rank, n] if n < buffer else np.inf for rank, n in enumerate(counts)]
        counts[int(np.argmin(following))] += 1
    assert solve_counts(costs, batch, solver="greedy").counts.tolist() == counts.tolist()


def test_the_tie_break_is_more_than_the_greedy_rule_gives():
    # Rank 0's first sample decides the maximum; the others may fill up to it.
    costs = np.array([[10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 3.0, 9.0], [8.0, 8.5, 8.6, 9.9]])
    exact, greedy = solve_counts(costs, 6), solve_counts(costs, 6, solver="greedy")
    assert (exact.counts.tolist(), greedy.counts.tolist()) == ([1, 4, 1], [1, 3, 2])
    assert objectives(costs, exact.counts)[1] < objectives(costs, greedy.counts)[1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 20))
def test_all_counts_are_listed_once(bounds, total):
    lower, width = np.array(bounds).T
    upper = lower + width
    counts = all_counts(lower, upper, total)
    expected = [c for c in product(*map(range, lower, upper + 1)) if sum(c) == total]
    assert counts.tolist() == [list(c) for c in expected]
    assert number_of_counts(lower, upper, total) == len(expected)
    for enough in (0, 1, 7, 50):
        counted = number_of_counts(lower, upper, total, enough)
        assert counted == len(expected) if len(expected) <= enough else enough < counted <= len(expected)


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_give_valid_counts_and_only_greedy_has_no_gap(name):
    rng = np.random.default_rng(7)
    gaps = []
    for kind in range(len(COSTS)):
        for _ in range(100):
            costs = draw_costs(rng, 4, 12, kind)
            costs[rng.integers(4), 9:] = np.inf
            counts = HEURISTICS[name](costs, 22)
            assert counts.sum() == 22
            assert (counts >= 1).all()
            found, _ = gap(costs, counts, solve_counts(costs, 22).counts)
            assert np.isfinite(found)
            gaps.append(found)
    assert min(gaps) >= 0
    assert (max(gaps) == 0) == (name == "greedy")

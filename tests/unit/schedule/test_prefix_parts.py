"""What `prefix` is made of, by hand: streams, costs of their first samples, rules of thumb, gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynbench.errors import UsageError
from dynbench.schedule import prefix_counts as prefix_enumerate
from dynbench.schedule import prefix_counts as prefix_variance
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.measure import HEURISTICS, GreedyGap, equal_counts, gap, greedy_gap, longest_first
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import Prefix, RankStream, automatic_buffer, buffer_size, candidate_costs, require_room
from dynbench.schedule.prefix_counts import check_enumerable, costs_of, least_threshold, room_of, solve_counts

ROWS = np.array([[10.0, 20, 30], [1, 2, 3], [5, 10, 15]])
UNEVEN = np.array(
    [
        [1.0, 26, 26, 26, 26, 30],
        [65, 69, 69, 69, 69, 69],
        [1, 1, 1, 1, 1, 1],
        [1, 2, 18, 34, 35, 84],
        [10, 11, 11, 11, 11, 11],
        [1, 1, 1, 1, 1, 50],
        [1, 65, 65, 81, 81, 81],
        [1, 1, 5, 5, 5, 54],
    ]
)
"""Of 27 samples the counts that vary least are found only where several parts of the hull are searched to the end."""
TAILS = np.array(
    [
        [36.0, 37, 2062, 2126, 2526],
        [2916, 2925, 3006, 3022, 3278],
        [49, 245, 261, 277, 446],
        [651, 667, 1567, 1571, 1607],
        [25, 281, 450, 475, 491],
    ]
)


def problem_of(lengths, workers=2, batch=4, **changes) -> Problem:
    return Problem(np.asarray(lengths), workers, batch, **{"order": "file", "buffer": 3, **changes})


def test_equal_counts_give_the_rest_to_the_first_ranks_and_what_has_no_room_to_the_next():
    assert equal_counts(ROWS, 6).tolist() == [2, 2, 2]
    assert equal_counts(ROWS, 8).tolist() == [3, 3, 2]
    little = np.where(np.array([[1, 0, 0], [1, 1, 1], [1, 1, 1]], dtype=bool), ROWS, np.inf)
    assert equal_counts(little, 6).tolist() == [1, 3, 2]
    assert equal_counts(little, 7).tolist() == [1, 3, 3]
    assert equal_counts(np.ones((3, 6)), 8).tolist() == [3, 3, 2], "also where there is room for more"


def test_longest_first_fills_ranks_up_to_the_mean_cost_of_equal_counts():
    # The mean of 20, 2 and 10 lets the first take 10, the third 5 and 10, the second all.
    assert longest_first(ROWS, 6).tolist() == [1, 3, 2]
    # What is left goes to the second, which is full, and then to the third.
    assert longest_first(ROWS, 7).tolist() == [1, 3, 3]
    assert longest_first(ROWS, 3).tolist() == [1, 1, 1]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 4, 5, 40]), st.integers(1, 7), st.data())
def test_longest_first_is_its_rule_sample_by_sample(seed, ranks, buffer, data):
    rng = np.random.default_rng(seed)
    # Small whole numbers: first samples are often equal, of which the lower rank is first, and a cost that just
    # reaches the target counts.
    costs = rng.integers(0, 3, (ranks, buffer)).cumsum(axis=1) + 1.0
    limits = rng.integers(1, buffer + 1, ranks)
    batch = data.draw(st.integers(ranks, int(limits.sum())))
    costs[np.arange(buffer) >= limits[:, None]] = np.inf
    target = np.mean([costs[rank, n - 1] for rank, n in enumerate(equal_counts(costs, batch))])
    longest = sorted(range(ranks), key=lambda rank: -costs[rank, 0])
    counts = [1] * ranks
    for rank in longest:
        while sum(counts) < batch and counts[rank] < limits[rank] and costs[rank, counts[rank]] <= target:
            counts[rank] += 1
    for rank in reversed(longest):
        counts[rank] += min(batch - sum(counts), limits[rank] - counts[rank])
    assert longest_first(costs, batch).tolist() == counts


def test_a_gap_is_in_units_of_the_exact_maximum():
    costs = np.array([[1.0, 2, 4], [1, 3, 9]])
    assert gap(costs, np.array([3, 1]), np.array([2, 2])) == (1 / 3, 2 / 9)
    assert gap(costs, np.array([2, 2]), np.array([2, 2])) == (0, 0)
    assert set(HEURISTICS) == {"greedy", "equal_counts", "longest_first"}


def test_costs_of_counts_and_how_many_fit():
    assert costs_of(ROWS, np.array([[1, 1, 1], [3, 2, 1]])).tolist() == [[10, 1, 5], [30, 2, 5]]
    assert room_of(np.array([[1.0, np.inf], [1, 2]])).tolist() == [1, 2]


def test_the_least_threshold_is_that_of_the_batch_or_of_a_first_sample():
    assert least_threshold(ROWS, 3) == 10
    assert least_threshold(ROWS, 6) == 10
    assert least_threshold(ROWS, 7) == 15
    assert least_threshold(ROWS, 9) == 30


def test_any_number_of_many_costs_is_taken_up_to_the_least_threshold():
    # So many that a selection leaves all but the one asked for unsorted.
    costs = np.random.default_rng(4).exponential(size=(20, 30))
    costs[:, 0] = 0
    costs = costs.cumsum(axis=1)
    rising = np.sort(costs, axis=None)
    for batch in range(20, 601):
        assert least_threshold(costs, batch) == rising[batch - 1]
        counts = solve_counts(costs, batch, "greedy").counts
        assert counts.sum() == batch
        assert costs[np.arange(20), counts - 1].max() == rising[batch - 1]


def test_exactly_as_many_plans_as_the_limit_are_tried(monkeypatch):
    # Seven samples over three ranks of at most three: 331, 322 and their other orders.
    monkeypatch.setattr(prefix_enumerate, "REFERENCE_LIMIT", 6)
    check_enumerable(np.array([3, 3, 3]), 7)
    monkeypatch.setattr(prefix_enumerate, "REFERENCE_LIMIT", 5)
    with pytest.raises(UsageError, match="more than 5 plans"):
        check_enumerable(np.array([3, 3, 3]), 7)


@pytest.mark.parametrize("limit", ["ENUMERATION_LIMIT", None])
def test_exact_counts_are_those_of_enumeration(monkeypatch, limit):
    """Few instances of what is tried on thousands, also by the hull."""
    if limit:
        monkeypatch.setattr(prefix_variance, limit, 0)
    rng = np.random.default_rng(3)
    for _ in range(60):
        ranks, buffer = int(rng.integers(2, 5)), int(rng.integers(2, 8))
        costs = np.cumsum(rng.exponential(size=(ranks, buffer)) * rng.integers(0, 2, (ranks, buffer)), axis=1) + 1
        batch = int(rng.integers(ranks, ranks * buffer + 1))
        exact, reference = (solve_counts(costs, batch, name) for name in ("exact", "enumerate"))
        found, best = (costs[np.arange(ranks), solution.counts - 1] for solution in (exact, reference))
        assert exact.exact == "both" and exact.counts.sum() == batch
        assert found.max() == best.max()
        assert found.var() == pytest.approx(best.var(), abs=1e-9 * best.max() ** 2)


@pytest.mark.parametrize(
    ("costs", "batch"),
    [
        (UNEVEN, 27),
        # Lost to a search whose upper end is below the gradient at its right vertex.
        (TAILS, 9),
        # A rank may not go on beyond the maximum, 10, where that would vary less.
        (np.array([[10.0, 10, 14, 14], [5, 5, 5, 9], [2, 2, 11, 20]]), 5),
        # Costs that are all equal at the most samples that each rank may take.
        (np.array([[1.0, 10, 10], [1, 10, 10]]), 4),
        # A rank whose first sample is all that fits.
        (np.array([[4.0, np.inf, np.inf], [1, 2, 4], [1, 3, 4]]), 5),
    ],
)
def test_the_hull_leads_to_the_least_variance(monkeypatch, costs, batch):
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 0)
    exact, reference = (solve_counts(costs, batch, name) for name in ("exact", "enumerate"))
    found, best = (costs[np.arange(len(costs)), solution.counts - 1] for solution in (exact, reference))
    assert exact.exact == "both" and exact.counts.sum() == batch
    assert found.max() == best.max()
    assert found.var() == pytest.approx(best.var())


def test_a_tie_is_broken_up_to_a_stated_size(monkeypatch):
    costs = np.cumsum(np.random.default_rng(0).exponential(size=(4, 9)), axis=1)
    most = np.full(4, 9)
    assert prefix_variance.least_variance(costs, most, 36) is not None
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 0)
    room, width = 14, 9  # 22 less the four lower bounds of one, up to 14 below the most; 9 counts each
    monkeypatch.setattr(prefix_variance, "PROGRAMME_LIMIT", 4 * ((room + 1) * width + 256))
    assert prefix_variance.least_variance(costs, most, 22) is not None
    monkeypatch.setattr(prefix_variance, "PROGRAMME_LIMIT", 4 * ((room + 1) * width + 256) - 1)
    assert prefix_variance.least_variance(costs, most, 22) is None
    assert prefix_variance.least_variance(costs, most, 36).tolist() == [9] * 4, "there is but one"
    room, width = 6, 7  # 10 less the four lower bounds of one; a rank takes all of them or none
    monkeypatch.setattr(prefix_variance, "PROGRAMME_LIMIT", 4 * ((room + 1) * width + 256))
    assert prefix_variance.least_variance(costs, most, 10) is not None
    monkeypatch.setattr(prefix_variance, "PROGRAMME_LIMIT", 4 * ((room + 1) * width + 256) - 1)
    assert prefix_variance.least_variance(costs, most, 10) is None


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**60])
def test_the_unit_of_the_costs_changes_no_count(monkeypatch, unit):
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 0)
    # Powers of two, as these round nothing.
    assert solve_counts(UNEVEN * unit, 27).counts.tolist() == solve_counts(UNEVEN, 27).counts.tolist()


def test_costs_of_nothing_are_shared_out_without_a_division_by_zero():
    with np.errstate(all="raise"):
        solution = solve_counts(np.zeros((3, 4)), 7)
    assert solution.exact == "both"
    assert solution.counts.sum() == 7


def test_few_plans_are_told_by_a_bound_or_by_counting_them(monkeypatch):
    counted = []
    real = prefix_variance.number_of_counts
    monkeypatch.setattr(prefix_variance, "number_of_counts", lambda *asked: counted.append(asked) or real(*asked))
    lower, upper = np.array([1, 1, 1]), np.array([3, 3, 3])
    # Four samples over three ranks, at most two more each: 6 of the 15 ways without that limit.
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 3 * 15)
    assert prefix_variance._few(lower, upper, 7, 4) and not counted
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 3 * 15 - 1)
    assert not prefix_variance._few(lower, upper + 2, 7, 4), "all 15 ways, where the limit is no limit"
    counted.clear()
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 3 * 6)
    assert prefix_variance._few(lower, upper, 7, 4) and len(counted) == 1
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 3 * 6 - 1)
    assert not prefix_variance._few(lower, upper, 7, 4)
    counted.clear()
    monkeypatch.setattr(prefix_variance, "_COUNTED", 3 * 4 - 1)
    assert not prefix_variance._few(lower, upper, 7, 4) and not counted, "too many to count"
    monkeypatch.setattr(prefix_variance, "_COUNTED", 3 * 4)
    prefix_variance._few(lower, upper, 7, 4)
    assert counted


def test_a_stream_goes_on_into_its_next_epoch():
    stream = RankStream(problem_of(np.arange(1, 8)), rank=1)  # samples 1, 3, 5 of every epoch
    assert (stream.ids.tolist(), stream.lengths.tolist()) == ([1, 3, 5], [2, 4, 6])
    assert stream.take(2).tolist() == [1, 3]
    assert (stream.ids.tolist(), stream.lengths.tolist()) == ([5, 1, 3], [6, 2, 4])
    assert stream.take(9).tolist() == [5, 1, 3], "no more than it holds"
    assert stream.ids.tolist() == [5, 1, 3]
    assert RankStream(problem_of(np.arange(1, 8), buffer=7), 0).ids.tolist() == [0, 2, 4, 6, 0, 2, 4]


def test_a_buffer_follows_the_batch_unless_it_is_given():
    assert (automatic_buffer(8, 2), automatic_buffer(33, 2), automatic_buffer(34, 2)) == (32, 32, 33)
    assert buffer_size(problem_of(np.arange(1, 80), buffer=None, batch=60)) == 59
    assert buffer_size(problem_of(np.arange(1, 80), batch=60, buffer=5)) == 5


def test_costs_of_the_first_samples_of_two_buffers():
    problem = problem_of(
        np.arange(1, 9), speeds=np.array([1.0, 0.5]), cost=CostModel(), capacity=Capacity.table([[(9, 2)], [(5, 3)]])
    )
    lengths = np.array([[3, 2, 4], [1, 5, 6]])
    found = candidate_costs(problem, lengths, [0, 1])
    assert found.tolist() == [[3, 6, np.inf], [2, 20, np.inf]]
    assert candidate_costs(problem, lengths[1:], [1]).tolist() == [[2, 20, np.inf]]
    free = problem_of(np.arange(1, 9))
    assert candidate_costs(free, lengths, [0, 1]).tolist() == [[3, 6, 12], [1, 10, 18]]


def test_room_for_exactly_the_batch_is_room():
    require_room(np.array([2, 2]), 4, step=0)


@pytest.mark.parametrize("solver", ["exact", "greedy", "enumerate"])
def test_gaps_are_those_of_the_exact_streams_whatever_solver_plans(solver):
    lengths = np.random.default_rng(2).integers(1, 40, 60)
    exact = greedy_gap(Prefix(problem_of(lengths, 3, 9, buffer=6)), 5)
    found = greedy_gap(Prefix(problem_of(lengths, 3, 9, buffer=6, solver=solver)), 5)
    assert found.summary() == exact.summary()
    assert len(found.max_cost["greedy"]) == 5
    assert len(greedy_gap(Prefix(problem_of(lengths, 3, 9, buffer=6)), 5, limit_s=0.0).max_cost["greedy"]) == 1
    assert len(greedy_gap(Prefix(problem_of(lengths, 3, 9, buffer=6)), 5, limit_s=1e9).max_cost["greedy"]) == 5


def test_gaps_are_summed_up_where_they_are_known():
    gaps = GreedyGap(
        {"greedy": np.array([0.0, 0, 0, 0]), "naive": np.array([0.1, 0.2, 0.3, 0.4])},
        {"greedy": np.array([0.5, np.nan, 1.5, np.nan]), "naive": np.full(4, np.nan)},
    )
    summary = gaps.summary()
    assert summary["steps"] == 4
    assert summary["variance"] == {"mean": 1.0, "p95": pytest.approx(1.45), "max": 1.5}
    assert summary["max_cost"] == {"mean": 0.0, "p95": 0.0, "max": 0.0}
    assert summary["naive_max_cost"] == {"naive": {"mean": 0.25, "p95": pytest.approx(0.385), "max": 0.4}}
    unknown = GreedyGap({"greedy": np.zeros(1)}, {"greedy": np.array([np.nan])})
    assert unknown.summary()["variance"] is None


def test_beyond_the_stated_size_a_gap_in_the_variance_is_unknown(monkeypatch):
    monkeypatch.setattr(prefix_variance, "ENUMERATION_LIMIT", 0)
    monkeypatch.setattr(prefix_variance, "PROGRAMME_LIMIT", 0)
    found = greedy_gap(Prefix(problem_of(np.full(90, 5), 3, 11, buffer=9)), 4)
    assert np.isnan(found.variance["greedy"]).all()
    assert not np.isnan(found.max_cost["equal_counts"]).any()

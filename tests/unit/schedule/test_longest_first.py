"""Longest first by hand: each job to the rank that would end it first."""

import numpy as np
import pytest

from dynbench.schedule.balancing import deal_longest_first, deal_to_first_finish


def test_each_job_goes_to_the_least_loaded_rank():
    # 7 | 5, then 4 to the 5, 3 to the 7, 2 to the 9.
    assert deal_longest_first(np.array([2.0, 3, 4, 5, 7]), 2) == (11.0, [[4, 1], [3, 2, 0]])
    assert deal_longest_first(np.array([4.0]), 1) == (4.0, [[0]])


def test_equal_jobs_are_dealt_in_their_order():
    assert deal_longest_first(np.ones(5), 2) == (3.0, [[0, 2, 4], [1, 3]])
    costs = np.random.default_rng(0).integers(1, 4, 200).astype(float)
    dealt: list[list[int]] = [[], [], []]
    for job in sorted(range(200), key=lambda job: -costs[job]):
        min(dealt, key=lambda jobs: costs[jobs].sum()).append(job)
    slowest = max(costs[jobs].sum() for jobs in dealt)
    assert deal_longest_first(costs, 3) == (slowest, dealt)
    assert deal_to_first_finish(costs, np.ones(3)) == (slowest, dealt)


def test_a_rank_that_has_its_number_of_jobs_gets_no_more():
    largest, dealt = deal_longest_first(np.array([9.0, 1, 1, 1]), 2, each=2)
    assert (largest, dealt) == (10.0, [[0, 3], [1, 2]])
    assert deal_longest_first(np.array([9.0, 1, 1, 1]), 2) == (9.0, [[0], [1, 2, 3]])
    assert deal_longest_first(np.array([3.0, 2, 1]), 3, each=1) == (3.0, [[0], [1], [2]])


def test_a_rank_of_twice_the_speed_gets_twice_the_work():
    assert deal_to_first_finish(np.array([4.0, 4, 4]), np.array([1.0, 2.0])) == (4.0, [[1], [0, 2]])
    assert deal_to_first_finish(np.array([6.0, 3, 2]), np.array([1.0, 4.0])) == (2.25, [[2], [0, 1]])


@pytest.mark.parametrize(("every_rank", "dealt"), [(True, [[2], [0, 1]]), (False, [[], [0, 1, 2]])])
def test_a_slow_rank_sits_out_where_it_may(every_rank, dealt):
    costs, speeds = np.array([3.0, 2, 1]), np.array([0.01, 1.0])
    assert deal_to_first_finish(costs, speeds, every_rank=every_rank)[1] == dealt


def test_the_first_job_of_a_rank_pays_no_surcharge():
    """Of three jobs of 5, 2 of them a surcharge, the rank with two pays 3 + 5."""
    assert deal_to_first_finish(np.full(3, 5.0), np.ones(2), 2.0) == (8.0, [[0, 2], [1]])
    # With its own 10, less the surcharge of 8, the first rank ends the 9 at 11, the second, which has none, at 1.
    assert deal_to_first_finish(np.array([10.0, 9]), np.ones(2), 8.0, every_rank=False) == (2.0, [[0], [1]])

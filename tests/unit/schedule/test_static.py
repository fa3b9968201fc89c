import numpy as np
import pytest
from plan_rules import judge_plan

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.policy import Planner, Problem

LENGTHS = np.array([5, 9, 2, 7, 4, 4, 8, 1, 6, 3, 3, 2])


def plan(step=0, **changes):
    problem = Problem(**({"lengths": LENGTHS, "workers": 2, "global_batch": 6, "order": "file"} | changes))
    made = Planner("static", problem).plan(step)
    judge_plan(made, problem)
    return [[ids.tolist() for ids in share] for share in made.shares]


def test_rank_g_takes_every_g_th_sample_of_the_global_batch():
    assert plan(step=1) == [[[6, 8, 10]], [[7, 9, 11]]]


def test_a_batch_that_is_not_a_multiple_names_the_nearest_two():
    with pytest.raises(UsageError, match="not a multiple of the 4 ranks") as caught:
        plan(workers=4)
    assert caught.value.hint == "Use 4 or 8."


def test_shares_beyond_capacity_name_the_largest_batch_that_fits():
    with pytest.raises(NothingFits) as caught:
        plan(capacity=Capacity.per_rank([3, 2]))
    assert "Of this step's samples 4 fit" in caught.value.hint
    assert plan(capacity=Capacity.uniform(3)) == plan()


def test_a_sample_beyond_every_capacity_is_named():
    with pytest.raises(NothingFits, match="sample 1 of 9 padded tokens"):
        plan(capacity=Capacity.table([[(8, 5)]]), micro_batches="auto")


def test_micro_batches_cut_a_share_in_order():
    assert plan(micro_batches=2) == [[[0, 2], [4]], [[1, 3], [5]]]
    assert plan(micro_batches="auto", capacity=Capacity.uniform(1)) == [[[0], [2], [4]], [[1], [3], [5]]]
    assert plan(micro_batches="auto") == plan()


def test_too_many_micro_batches_are_refused():
    with pytest.raises(UsageError, match="4 for 3 samples per rank"):
        plan(micro_batches=4)
    with pytest.raises(NothingFits) as caught:
        plan(micro_batches=2, capacity=Capacity.uniform(1))
    assert "samples 4 fit" in caught.value.hint

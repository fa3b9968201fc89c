import numpy as np
from plan_rules import judge_plan

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


def test_micro_batches_cut_a_share_in_order():
    assert plan(micro_batches=2) == [[[0, 2], [4]], [[1, 3], [5]]]
    assert plan(micro_batches="auto", capacity=Capacity.uniform(1)) == [[[0], [2], [4]], [[1], [3], [5]]]
    assert plan(micro_batches="auto") == plan()

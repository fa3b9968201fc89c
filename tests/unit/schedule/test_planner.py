import numpy as np
import pytest

from dynbench.schedule.policy import Planner, Problem

LENGTHS = np.clip(np.random.default_rng(1).lognormal(3, 0.8, 70).astype(int), 1, 200)


def plain(plan):
    return plan.step, [[ids.tolist() for ids in share] for share in plan.shares]


@pytest.mark.parametrize("policy", ["static", "partition", "prefix"])
def test_any_order_of_asking_gives_the_same_plans(policy):
    problem = Problem(LENGTHS, 2, 8)
    in_order = Planner(policy, problem)
    expected = [plain(in_order.plan(step)) for step in range(25)]
    jumping = Planner(policy, problem)
    for step in (3, 4, 4, 24, 0, 1, 17, 16, 8, 9):
        assert plain(jumping.plan(step)) == expected[step]


def test_consecutive_steps_do_not_start_anew(monkeypatch):
    planner = Planner("prefix", Problem(LENGTHS, 2, 8))
    starts = []
    monkeypatch.setattr(
        planner.policy, "plans", lambda start, real=planner.policy.plans: starts.append(start) or real(start)
    )
    for step in (5, 6, 6, 7, 2):
        planner.plan(step)
    assert starts == [5, 2]

"""Problems and plans of policies, and the rules that every plan keeps, checked sample by sample."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem, make_policy

COSTS = (
    CostModel("tokens", alpha=5.0, beta=3.0, gamma=2.0, further=9.0),  # which only `measured` pays
    CostModel("tokens", pad_to_multiple_of=8),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.05),
    CostModel("measured", alpha=7.5, beta=0.3, gamma=0.01),
)
FLAT = CostModel("measured", alpha=1.0, beta=0.0, gamma=0.0)
"""Tells no plans of one micro-batch per rank apart."""


def heavy_tailed(n: int, seed: int = 0, high: int = 1024) -> np.ndarray:
    """Lengths from 16 on."""
    return np.clip(np.random.default_rng(seed).lognormal(5, 1, n).astype(np.int64), 16, high)


def problem_of(lengths: Iterable[int], workers: int = 2, batch: int | None = None, **changes: object) -> Problem:
    """The samples in the order of the file, all of them a step unless told otherwise."""
    given = np.asarray(lengths, dtype=np.int64)
    return Problem(given, workers, batch or len(given), **{"order": "file", **changes})


def plans_of(policy: str, problem: Problem, steps: int, start: int = 0) -> list[StepPlan]:
    return list(islice(make_policy(policy, problem).plans(start), steps))


def first_plan(policy: str, problem: Problem) -> StepPlan:
    return plans_of(policy, problem, 1)[0]


def total_cost(plans: Iterable[StepPlan], problem: Problem) -> float:
    """What the steps last by this problem's objective."""
    return sum(step_cost(plan, problem) for plan in plans)


def taken(plans: Iterable[StepPlan]) -> list[int]:
    """The samples of the steps, sorted."""
    return sorted(np.concatenate([plan.sample_ids() for plan in plans]).tolist())


def plain(plan: StepPlan) -> list[list[list[int]]]:
    """Ids per rank and micro-batch."""
    return [[ids.tolist() for ids in share] for share in plan.shares]


def judge_plan(
    plan: StepPlan,
    problem: Problem,
    expected_ids: Iterable[int] | None = None,
    *,
    fixed_batch: bool = True,
    capped: bool = True,
) -> None:
    """Check the rules that every plan keeps.

    One share per worker, none empty; `global_batch` samples in all; every micro-batch within its rank's capacity, in
    samples or, of packed rows, in tokens; and, given `expected_ids`, exactly these samples, each as often as there.

    Args:
        plan: what to check.
        problem: what it was planned for.
        expected_ids: samples that the step must take.
        fixed_batch: False for a policy whose number of samples varies.
        capped: False for a baseline that knows no capacities.

    Raises:
        AssertionError: a rule is broken, which is a bug of the policy, never of the user.
    """
    ids, shares = plan.sample_ids(), plan.shares
    assert len(shares) == problem.workers, plan
    assert all(share and min(map(len, share)) for share in shares), f"an empty share or micro-batch: {plan}"
    assert 0 <= ids.min() <= ids.max() < len(problem.lengths), f"no such sample: {plan}"
    assert not fixed_batch or len(ids) == problem.global_batch, plan
    assert expected_ids is None or sorted(ids.tolist()) == sorted(map(int, expected_ids)), f"other samples: {plan}"
    for rank, share in enumerate(shares if capped else ()):
        for part in share:
            limit = problem.capacity.limit(rank, int(problem.padded_lengths[part].max()))
            size = int(problem.lengths[part].sum()) if plan.packed else len(part)
            assert size <= limit, f"rank {rank} runs {size} {problem.capacity.unit} of at most {limit}: {plan}"

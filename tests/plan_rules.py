"""The rules that every plan keeps, checked sample by sample."""

from __future__ import annotations

from collections.abc import Iterable

from dynbench.schedule.plan import StepPlan
from dynbench.schedule.policy import Problem


class PlanError(AssertionError):
    """A plan that breaks a rule: a bug of its policy, never of the user."""


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
        PlanError: the first rule that is broken, with step, rank and value.
    """
    where = f"step {plan.step}"
    if len(plan.shares) != problem.workers:
        raise PlanError(f"{where}: {len(plan.shares)} shares for {problem.workers} ranks")
    for rank, share in enumerate(plan.shares):
        if not share or any(len(ids) == 0 for ids in share):
            raise PlanError(f"{where}: rank {rank} has an empty share or micro-batch")
    ids = plan.sample_ids()
    if ids.min() < 0 or ids.max() >= len(problem.lengths):
        raise PlanError(f"{where}: sample {ids.min()} or {ids.max()} is outside 0..{len(problem.lengths) - 1}")
    if fixed_batch and len(ids) != problem.global_batch:
        raise PlanError(f"{where}: {len(ids)} samples, not {problem.global_batch}")
    if expected_ids is not None and sorted(ids.tolist()) != sorted(int(i) for i in expected_ids):
        raise PlanError(f"{where}: its samples are not the expected ones, each once")
    if not capped:
        return
    for rank, share in enumerate(plan.shares):
        for part in share:
            longest = int(problem.padded_lengths[part].max())
            limit = problem.capacity.limit(rank, longest)
            size = int(problem.lengths[part].sum()) if plan.packed else len(part)
            if size > limit:
                raise PlanError(
                    f"{where}: rank {rank} runs {size} {problem.capacity.unit} at length {longest}, "
                    f"its capacity is {limit}"
                )

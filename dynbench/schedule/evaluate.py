"""What a plan costs, step by step and over a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.bounds import step_bound
from dynbench.schedule.plan import FloatArray, IntArray, Share, StepPlan
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.streams import automatic_buffer

TRIED_ONE_BY_ONE = 512
"""Global batches tried without leaving one out; below these, every step down is a hundredth."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step's plan amounts to.

    Attributes:
        costs: predicted time per rank, cost over speed, shape [G].
        max_cost: what the step lasts: the slowest rank's cost or, where ranks meet in every micro-batch, the sum over
            these of the slowest rank's.
        padded_tokens: per rank, summed over its micro-batches, shape [G].
        real_tokens: per rank, shape [G].
        local_batches: samples per rank, shape [G].
        bound: no plan of these samples has a smaller `max_cost`.
        capacity_violations: micro-batches above their rank's capacity.
    """

    costs: FloatArray
    max_cost: float
    padded_tokens: IntArray
    real_tokens: IntArray
    local_batches: IntArray
    bound: float
    capacity_violations: int

    @property
    def variance(self) -> float:
        """Variance of the cost over ranks (population)."""
        return float(self.costs.var())

    @property
    def mean_length(self) -> float:
        """Mean real length of the step's samples, tokens."""
        return float(self.real_tokens.sum() / self.local_batches.sum())


@dataclass(frozen=True, slots=True)
class _MicroBatches:
    """All micro-batches of a plan, rank by rank; arrays of shape [M]."""

    rank: IntArray
    first_of_rank: IntArray
    count: IntArray
    longest: IntArray
    tokens: IntArray
    squares: FloatArray
    extra: FloatArray


def _micro_batches(plan: StepPlan, problem: Problem) -> _MicroBatches:
    per_rank = np.array([len(share) for share in plan.shares])
    count = np.array([len(ids) for share in plan.shares for ids in share])
    starts = np.concatenate(([0], np.cumsum(count)[:-1]))
    ids = plan.sample_ids()
    real = problem.lengths[ids]
    squares = np.add.reduceat(real.astype(np.float64) ** 2, starts) if plan.packed else np.zeros(len(count))
    return _MicroBatches(
        rank=np.repeat(np.arange(len(per_rank)), per_rank),
        first_of_rank=np.concatenate(([0], np.cumsum(per_rank)[:-1])),
        count=count,
        longest=np.maximum.reduceat(problem.padded_lengths[ids], starts),
        tokens=np.add.reduceat(real, starts),
        squares=squares,
        extra=np.add.reduceat(np.broadcast_to(problem.extra_of(ids), ids.shape), starts),
    )


def _costs(plan: StepPlan, problem: Problem, parts: _MicroBatches) -> FloatArray:
    """Predicted cost of each micro-batch, shape [M]."""
    if plan.packed:
        return problem.cost.cost_packed(parts.tokens, parts.squares, parts.extra)
    return problem.cost.cost_padded(parts.count, parts.longest, parts.extra)


def _share_costs(plan: StepPlan, problem: Problem, parts: _MicroBatches) -> FloatArray:
    """Predicted cost of each share, whoever runs it."""
    costs = _costs(plan, problem, parts)
    per_rank = np.diff(parts.first_of_rank, append=len(costs))
    return problem.cost.of_rank(np.add.reduceat(costs, parts.first_of_rank), per_rank)


def _rank_costs(plan: StepPlan, problem: Problem, parts: _MicroBatches) -> FloatArray:
    whole = _share_costs(plan, problem, parts)
    return whole if problem.speeds is None else whole / problem.relative_speeds()


def _lasts(plan: StepPlan, problem: Problem, parts: _MicroBatches) -> float:
    if problem.objective == "sum" or len(parts.rank) == len(plan.shares):
        return float(_rank_costs(plan, problem, parts).max())
    slot = np.arange(len(parts.rank)) - parts.first_of_rank[parts.rank]
    costs = _costs(plan, problem, parts) + np.where(slot > 0, problem.cost.surcharge, 0.0)
    dearest = np.zeros(int(slot.max()) + 1)
    np.maximum.at(dearest, slot, costs / problem.relative_speeds()[parts.rank])
    return float(dearest.sum())


def share_cost(share: Share, problem: Problem) -> float:
    """Predicted cost of one rank's micro-batches."""
    plan = StepPlan(0, (share,), packed=problem.packed)
    return float(_share_costs(plan, problem, _micro_batches(plan, problem))[0])


def step_costs(plan: StepPlan, problem: Problem) -> FloatArray:
    """Predicted cost of each rank's micro-batches over its speed, shape [G]."""
    return _rank_costs(plan, problem, _micro_batches(plan, problem))


def step_cost(plan: StepPlan, problem: Problem) -> float:
    """What a step lasts, by the problem's objective: see `StepFacts.max_cost`."""
    return _lasts(plan, problem, _micro_batches(plan, problem))


def step_facts(plan: StepPlan, problem: Problem) -> StepFacts:
    """Costs, tokens, counts, bound and violations of a plan."""
    parts = _micro_batches(plan, problem)
    padded = parts.tokens if plan.packed else parts.count * parts.longest
    return StepFacts(
        costs=_rank_costs(plan, problem, parts),
        max_cost=_lasts(plan, problem, parts),
        padded_tokens=np.add.reduceat(padded, parts.first_of_rank),
        real_tokens=np.add.reduceat(parts.tokens, parts.first_of_rank),
        local_batches=np.add.reduceat(parts.count, parts.first_of_rank),
        bound=step_bound(plan, problem),
        capacity_violations=_violations(parts.tokens if plan.packed else parts.count, parts, problem),
    )


def _violations(sizes: IntArray, parts: _MicroBatches, problem: Problem) -> int:
    """Micro-batches above capacity; their sizes are in its unit, shape [M]."""
    if problem.capacity.unlimited:
        return 0
    limits = problem.capacity.limits(problem.workers, parts.longest)[parts.rank, np.arange(len(parts.rank))]
    return int(np.count_nonzero(sizes > limits))


OnBatch = Callable[[int], None]
"""Told which global batch is tried next."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A global batch with which every step of a run fits."""

    global_batch: int
    largest: bool
    """Whether every larger one below the batch that does not fit was tried."""


def largest_fitting(
    policy: str, problem: Problem, steps: int, on_batch: OnBatch = lambda batch: None
) -> Fitting | None:
    """The largest global batch below the problem's with which all steps fit; None where there is none.

    Another batch cuts the data elsewhere: a smaller one may fail in a step whose samples a larger one holds. So this is
    no bisection: from the most that any plan can hold downwards, each one is checked in every step.

    Args:
        policy: a name of the registry.
        problem: what does not fit.
        steps: of the run, warm-up included.
        on_batch: told what is tried.
    """
    exhaustive = True
    automatic = problem.buffer == automatic_buffer(problem.global_batch, problem.workers)
    for tried, batch in enumerate(_candidates(policy, problem)):
        on_batch(batch)
        buffer = None if automatic else problem.buffer
        exhaustive = exhaustive and tried <= TRIED_ONE_BY_ONE
        try:
            fits = make_policy(policy, replace(problem, global_batch=batch, buffer=buffer)).misfit(steps) is None
        except (UsageError, NothingFits):  # a batch that this policy cannot deal at all
            continue
        if fits:
            return Fitting(batch, exhaustive)
    return None


def _candidates(policy: str, problem: Problem) -> Iterator[int]:
    """Global batches below the problem's that could fit if all samples were the shortest, falling."""
    ranks = problem.workers
    stride = ranks if policy == "static" else 1
    batch, tried = min(problem.global_batch - 1, _most(policy, problem)) // stride * stride, 0
    while batch >= ranks:
        yield batch
        tried += 1
        batch -= stride if tried <= TRIED_ONE_BY_ONE else max(1, batch // 100 // stride) * stride


def _most(policy: str, problem: Problem) -> int:
    """No plan of a step has more samples."""
    if problem.micro_batches == "auto":
        return problem.global_batch
    ranks, shortest = problem.workers, problem.padded_lengths.min(keepdims=True)
    limits = problem.capacity.limits(ranks, shortest)[:, 0] * problem.micro_batches
    if problem.packed:
        limits //= shortest
    return ranks * int(limits.min()) if policy == "static" else int(limits.sum())

"""What a plan costs, and lower bounds on that, whatever the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray, Share, StepPlan, floats
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.prefix import automatic_buffer


def batch_bound(
    padded_lengths: IntArray,
    cost: CostModel,
    speeds: FloatArray,
    *,
    micro_batches: int = 1,
    limits: IntArray | FloatArray | None = None,
    extra: FloatArray | float = 0.0,
) -> float:
    """No plan of these samples has a smaller maximum of cost over speed.

    Padding only adds, so the ranks' work is at least that of the samples one by one; some rank does at least the mean
    of it, and some rank holds the longest sample. Every rank works, so each pays `measured`'s alpha once, and the price
    of a further micro-batch for each beyond.

    Args:
        padded_lengths: lengths of the step's samples, rounded up, shape [n], tokens.
        cost: the cost model.
        speeds: of the ranks that train, relative, shape [G].
        micro_batches: the most micro-batches that one rank may run.
        limits: largest micro-batch at each sample's length on any rank, shape [n]; a micro-batch of n samples then
            uses up at least the sum of their 1/limit, so it bounds the number of micro-batches from below. Where one is
            0, a policy that knows no limits took what fits nowhere, and nothing is counted.
        extra: tokens that each sample costs besides, shape [n]; see `Problem.second`.

    Returns:
        The bound, in the cost's unit.
    """
    workers, fastest = len(speeds), float(speeds.max())
    weights = cost.per_sample(padded_lengths, extra)
    work, largest = float(weights.sum()), float(weights.max())
    if cost.cost_type == "tokens_sq":
        return _squares(weights, speeds, micro_batches)
    runs = workers
    if limits is not None and np.all(limits > 0):
        runs = max(workers, math.ceil(float((1.0 / limits).sum()) - 1e-9))
    mean = (float(cost.of_rank(runs * cost.fixed, runs - workers + 1)) + work) / float(speeds.sum())
    if cost.cost_type == "tokens" and np.ptp(speeds) == 0:
        mean = _even(weights, workers) / fastest
    return max(mean, (cost.fixed + largest) / fastest)


def packed_bound(
    lengths: IntArray,
    cost: CostModel,
    speeds: FloatArray,
    *,
    micro_batches: int = 1,
    limits: IntArray | None = None,
    extra: FloatArray | float = 0.0,
) -> float:
    """As `batch_bound`, of rows of real tokens; `limits` are tokens.

    Of the k*G + 1 dearest samples some rank holds k + 1 (the pigeonhole principle): with equal ranks the cheapest of
    these k + 1 bound it too.
    """
    shares = None if limits is None else limits / lengths
    bound = batch_bound(lengths, cost, speeds, micro_batches=micro_batches, limits=shares, extra=extra)
    workers, squared = len(speeds), cost.cost_type == "tokens_sq"
    if len(lengths) <= workers or (squared and micro_batches > 1) or np.ptp(speeds) > 0:
        return bound
    falling = np.sort(cost.per_sample(lengths, extra))[::-1]
    before = np.concatenate(([0.0], np.cumsum(falling)))
    k = np.arange(1, (len(falling) - 1) // workers + 1)
    crowded = (before[k * workers + 1] - before[k * (workers - 1)]).max()
    return max(bound, float(cost.of_work(crowded)) / float(speeds[0]))


def _even(weights: FloatArray, ranks: int) -> float:
    """The mean over ranks of what samples weigh, rounded up where all weigh whole numbers."""
    mean = float(weights.sum()) / ranks
    return math.ceil(mean) if np.all(weights == np.floor(weights)) else mean


def _squares(tokens: FloatArray, speed: FloatArray, micro_batches: int) -> float:
    """Bound for `tokens_sq`: k micro-batches of t tokens together cost at least t²/k, and at least sum(L²)."""
    fastest = float(speed.max())
    longest = float(tokens.max()) ** 2 / fastest
    if micro_batches == 1 and np.ptp(speed) == 0:
        return max(_even(tokens, len(speed)) ** 2 / fastest, longest)
    together = float(tokens.sum()) / float(np.sqrt(speed).sum())
    apart = float((tokens**2).sum()) / float(speed.sum())
    return max(together**2 / micro_batches, apart, longest)


def slots_bound(weights: FloatArray, cost: CostModel, fastest: float, ranks: int, slots: int) -> float:
    """No plan whose ranks synchronise in every micro-batch has a smaller sum over these of the slowest rank's.

    Of n slots, i hold i*G samples at least, so the i-th shortest one is no shorter than the i*G-th cheapest sample; and
    some slot holds the dearest. The mean over ranks bounds this sum as it bounds the slowest rank's: see `batch_bound`.

    Args:
        weights: what each sample adds to its micro-batch, in any order, shape [n].
        cost: the cost model.
        fastest: the largest relative speed.
        ranks: ranks that train (G).
        slots: micro-batches that every rank runs at least (n).
    """
    falling = np.sort(weights)[::-1]
    dearest = cost.of_work(falling[[0, *(len(falling) - ranks * np.arange(1, slots))]])
    return float(cost.of_rank(dearest.sum(), slots)) / fastest


def step_bound(plan: StepPlan, problem: Problem) -> float:
    """The bound on `step_cost` of the samples that a plan took, at the micro-batches it uses; packed plans do not pad.

    Where every rank runs the same number because ranks synchronise in each, a number that was chosen may be as small as
    the capacities allow.
    """
    ids = plan.sample_ids()
    lengths = problem.lengths[ids] if plan.packed else problem.padded_lengths[ids]
    bound = packed_bound if plan.packed else batch_bound
    most = max(len(share) for share in plan.shares)
    limits = None
    if most > 1 and not problem.capacity.unlimited:
        limits = problem.capacity.limits(problem.workers, lengths).max(axis=0)
    speeds, extra = problem.relative_speeds(), problem.extra_of(ids)
    found = bound(lengths, problem.cost, speeds, micro_batches=most, limits=limits, extra=extra)
    if most == 1 or problem.objective == "sum":
        return found
    slots = most if problem.micro_batches != "auto" else 1
    weights = problem.cost.per_sample(lengths, extra)
    return max(found, slots_bound(weights, problem.cost, float(speeds.max()), problem.workers, slots))


TRIED_ONE_BY_ONE = 512
"""Global batches tried without leaving one out; below these, every step down is a hundredth."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step's plan amounts to.

    Attributes:
        costs: predicted time per rank, cost over speed, shape [G].
        max_cost: what the step lasts: the slowest rank's cost or, where ranks synchronise in every micro-batch, the sum
            over these of the slowest rank's.
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


class _Priced:
    """The micro-batches of a plan, rank by rank; arrays of shape [M]."""

    def __init__(self, plan: StepPlan, problem: Problem) -> None:
        self.problem = problem
        self.per_rank = np.array([len(share) for share in plan.shares])
        self.first_of_rank = np.concatenate(([0], np.cumsum(self.per_rank)[:-1]))
        self.rank = np.repeat(np.arange(len(self.per_rank)), self.per_rank)
        self.count = np.array([len(ids) for share in plan.shares for ids in share])
        starts = np.concatenate(([0], np.cumsum(self.count)[:-1]))
        ids = plan.sample_ids()
        real = problem.lengths[ids]
        self.longest = np.maximum.reduceat(problem.padded_lengths[ids], starts)
        self.tokens = np.add.reduceat(real, starts)
        extra = np.add.reduceat(np.broadcast_to(problem.extra_of(ids), ids.shape), starts)
        if plan.packed:
            squares = np.add.reduceat(floats(real) ** 2, starts)
            self.costs = problem.cost.cost_packed(self.tokens, squares, extra)
        else:
            self.costs = problem.cost.cost_padded(self.count, self.longest, extra)

    def of_ranks(self, values: IntArray) -> IntArray:
        """Sums over each rank's micro-batches, shape [G]."""
        return np.add.reduceat(values, self.first_of_rank)

    def share_costs(self) -> FloatArray:
        """Predicted cost of each share, whoever runs it, shape [G]."""
        return self.problem.cost.of_rank(np.add.reduceat(self.costs, self.first_of_rank), self.per_rank)

    def rank_costs(self) -> FloatArray:
        """The same over the rank's speed, shape [G]."""
        return self.share_costs() / self.problem.relative_speeds()

    def lasts(self) -> float:
        """What the step lasts, by the problem's objective."""
        problem = self.problem
        if problem.objective == "sum" or len(self.rank) == len(self.per_rank):
            return float(self.rank_costs().max())
        slot = np.arange(len(self.rank)) - self.first_of_rank[self.rank]
        costs = self.costs + np.where(slot > 0, problem.cost.surcharge, 0.0)
        dearest = np.zeros(int(slot.max()) + 1)
        np.maximum.at(dearest, slot, costs / problem.relative_speeds()[self.rank])
        return float(dearest.sum())

    def violations(self, sizes: IntArray) -> int:
        """Micro-batches above capacity; their sizes are in its unit, shape [M]."""
        if self.problem.capacity.unlimited:
            return 0
        limits = self.problem.capacity.limits(self.problem.workers, self.longest)
        return int(np.count_nonzero(sizes > limits[self.rank, np.arange(len(self.rank))]))


def share_cost(share: Share, problem: Problem) -> float:
    """Predicted cost of one rank's micro-batches."""
    return float(_Priced(StepPlan(0, (share,), packed=problem.packed), problem).share_costs()[0])


def step_costs(plan: StepPlan, problem: Problem) -> FloatArray:
    """Predicted cost of each rank's micro-batches over its speed, shape [G]."""
    return _Priced(plan, problem).rank_costs()


def step_cost(plan: StepPlan, problem: Problem) -> float:
    """What a step lasts, by the problem's objective: see `StepFacts.max_cost`."""
    return _Priced(plan, problem).lasts()


def step_facts(plan: StepPlan, problem: Problem) -> StepFacts:
    """Costs, tokens, counts, bound and violations of a plan."""
    parts = _Priced(plan, problem)
    return StepFacts(
        costs=parts.rank_costs(),
        max_cost=parts.lasts(),
        padded_tokens=parts.of_ranks(parts.tokens if plan.packed else parts.count * parts.longest),
        real_tokens=parts.of_ranks(parts.tokens),
        local_batches=parts.of_ranks(parts.count),
        bound=step_bound(plan, problem),
        capacity_violations=parts.violations(parts.tokens if plan.packed else parts.count),
    )


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

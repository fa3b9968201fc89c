"""Lower bounds on a step's maximum over ranks, whatever the plan."""

from __future__ import annotations

import math

import numpy as np

from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray, StepPlan
from dynbench.schedule.policy import Problem


def batch_bound(
    padded_lengths: IntArray,
    cost: CostModel,
    workers: int,
    *,
    speeds: FloatArray | None = None,
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
        workers: ranks that train (G).
        speeds: relative speed per rank, shape [G]; ones by default.
        micro_batches: the most micro-batches that one rank may run.
        limits: largest micro-batch at each sample's length on any rank, shape [n]; a micro-batch of n samples then
            uses up at least the sum of their 1/limit, so it bounds the number of micro-batches from below. Where one is
            0, a policy that knows no limits took what fits nowhere, and nothing is counted.
        extra: tokens that each sample costs besides, shape [n]; see `Problem.second`.

    Returns:
        The bound, in the cost's unit.
    """
    speed = np.ones(workers) if speeds is None else np.asarray(speeds, dtype=np.float64)
    total_speed, fastest = float(speed.sum()), float(speed.max())
    weights = cost.per_sample(padded_lengths, extra)
    work, largest = float(weights.sum()), float(weights.max())
    if cost.cost_type == "tokens_sq":
        return _squares(weights, speed, micro_batches)
    alpha = cost.alpha if cost.cost_type == "measured" else 0.0
    runs = workers
    if limits is not None and np.all(limits > 0):
        runs = max(workers, math.ceil(float((1.0 / limits).sum()) - 1e-9))
    mean = (float(cost.of_rank(runs * alpha, runs - workers + 1)) + work) / total_speed
    if cost.cost_type == "tokens" and np.all(speed == speed[0]):
        mean = _even(weights, workers) / fastest
    return max(mean, (alpha + largest) / fastest)


def packed_bound(
    lengths: IntArray,
    cost: CostModel,
    workers: int,
    *,
    speeds: FloatArray | None = None,
    micro_batches: int = 1,
    limits: IntArray | None = None,
    extra: FloatArray | float = 0.0,
) -> float:
    """As `batch_bound`, of rows of real tokens; `limits` are tokens.

    Of the k*G + 1 dearest samples some rank holds k + 1 (the pigeonhole principle): with equal ranks the cheapest of
    these k + 1 bound it too.
    """
    shares = None if limits is None else limits / lengths
    bound = batch_bound(lengths, cost, workers, speeds=speeds, micro_batches=micro_batches, limits=shares, extra=extra)
    squared = cost.cost_type == "tokens_sq"
    if len(lengths) <= workers or (squared and micro_batches > 1) or not (speeds is None or np.ptp(speeds) == 0):
        return bound
    falling = np.sort(cost.per_sample(lengths, extra))[::-1]
    before = np.concatenate(([0.0], np.cumsum(falling)))
    k = np.arange(1, (len(falling) - 1) // workers + 1)
    crowded = float((before[k * workers + 1] - before[k * (workers - 1)]).max())
    alpha = cost.alpha if cost.cost_type == "measured" else 0.0
    fastest = 1.0 if speeds is None else float(speeds[0])
    return max(bound, (crowded**2 if squared else alpha + crowded) / fastest)


def _even(weights: FloatArray, ranks: int) -> float:
    """The mean over ranks of what samples weigh, rounded up where all weigh whole numbers."""
    mean = float(weights.sum()) / ranks
    return math.ceil(mean) if np.all(weights == np.floor(weights)) else mean


def _squares(tokens: FloatArray, speed: FloatArray, micro_batches: int) -> float:
    """Bound for `tokens_sq`: k micro-batches of t tokens together cost at least t²/k, and at least sum(L²)."""
    fastest = float(speed.max())
    longest = float(tokens.max()) ** 2 / fastest
    if micro_batches == 1 and np.all(speed == speed[0]):
        return max(_even(tokens, len(speed)) ** 2 / fastest, longest)
    together = float(tokens.sum()) / float(np.sqrt(speed).sum())
    apart = float((tokens**2).sum()) / float(speed.sum())
    return max(together**2 / micro_batches, apart, longest)


def slots_bound(weights: FloatArray, cost: CostModel, fastest: float, ranks: int, slots: int) -> float:
    """No plan whose ranks meet in every micro-batch has a smaller sum over these of the slowest rank's.

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
    dearest = falling[[0, *(len(falling) - ranks * np.arange(1, slots))]]
    if cost.cost_type == "tokens_sq":
        dearest = dearest * dearest
    alpha = cost.alpha if cost.cost_type == "measured" else 0.0
    return (float(dearest.sum()) + slots * alpha + (slots - 1) * cost.surcharge) / fastest


def step_bound(plan: StepPlan, problem: Problem) -> float:
    """The bound on `step_cost` of the samples that a plan took, at the micro-batches it uses; packed plans do not pad.

    Where every rank runs the same number because ranks meet in each, a number that was chosen may be as small as the
    capacities allow.
    """
    ids = plan.sample_ids()
    lengths = problem.lengths[ids] if plan.packed else problem.padded_lengths[ids]
    bound = packed_bound if plan.packed else batch_bound
    most = max(len(share) for share in plan.shares)
    limits = None
    if most > 1 and not problem.capacity.unlimited:
        limits = problem.capacity.limits(problem.workers, lengths).max(axis=0)
    speeds, extra = None if problem.speeds is None else problem.relative_speeds(), problem.extra_of(ids)
    found = bound(lengths, problem.cost, problem.workers, speeds=speeds, micro_batches=most, limits=limits, extra=extra)
    if most == 1 or problem.objective == "sum":
        return found
    slots = most if problem.micro_batches != "auto" else 1
    weights, fastest = problem.cost.per_sample(lengths, extra), float(problem.relative_speeds().max())
    return max(found, slots_bound(weights, problem.cost, fastest, problem.workers, slots))

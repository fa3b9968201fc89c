"""Every deal of few samples, priced by the formulas of the costs."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np

from dynbench.schedule.policy import Problem


@cache
def every_deal(samples: int, ranks: int) -> np.ndarray:
    """Every way to give each sample a rank without leaving one idle, shape [deals, samples]."""
    deals = np.array(list(product(range(ranks), repeat=samples)))
    return deals[[len(set(deal)) == ranks for deal in deals.tolist()]]


def micro_batch_costs(problem: Problem, held: np.ndarray, rank: int = 0) -> np.ndarray:
    """What micro-batches of a rank cost at speed 1, infinite above its capacity.

    Args:
        problem: its costs and capacities are asked for.
        held: which samples are in each micro-batch, or how often, shape [micro-batches, N].
        rank: whose capacity holds.

    Returns:
        Costs, shape [micro-batches].
    """
    model, multiple = problem.cost, problem.cost.pad_to_multiple_of
    padded = np.minimum(-(-problem.lengths // multiple) * multiple, model.positions or 10**9)
    lengths = problem.lengths if problem.packed else padded
    count, longest = held.sum(axis=1), np.where(held, lengths, 0).max(axis=1)
    tokens = held @ lengths if problem.packed else count * longest
    squares = held @ lengths**2 if problem.packed else count * longest**2
    fits = (tokens if problem.packed else count) <= problem.capacity.limits_of(rank, longest)
    total = tokens if problem.second is None else tokens + problem.second_weight * (held @ problem.second)
    cost = {
        "tokens": total,
        "tokens_sq": total**2,
        "attention": total + model.attention_a * squares,
        "measured": model.alpha + model.beta * total + model.gamma * squares,
    }[model.cost_type]
    return np.where(fits, cost, np.inf)


def least(problem: Problem) -> tuple[float, float]:
    """Least maximum over ranks of one micro-batch each and, at it, the least total; infinite when nothing fits."""
    deals = every_deal(len(problem.lengths), problem.workers)
    speeds = problem.relative_speeds()
    costs = np.stack(
        [micro_batch_costs(problem, deals == rank, rank) / speed for rank, speed in enumerate(speeds)], axis=1
    )
    slowest = costs.max(axis=1)
    return float(slowest.min()), float(costs[slowest <= slowest.min() * (1 + 1e-12)].sum(axis=1).min())

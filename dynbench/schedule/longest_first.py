"""Jobs to ranks, dearest first (LPT): Graham, SIAM J. Appl. Math. 17, 1969, section 5.

For ranks of unequal speed as in Gonzalez, Ibarra and Sahni (SIAM J. Comput. 6, 1977).
"""

from __future__ import annotations

import heapq

import numpy as np

from dynbench.schedule.plan import FloatArray


def deal_longest_first(costs: FloatArray, ranks: int, each: int | None = None) -> tuple[float, list[list[int]]]:
    """Each job to the least loaded rank; every rank gets one.

    Args:
        costs: shape [M], at least as many as ranks.
        ranks: G.
        each: jobs that every rank gets, when fixed (M = G * each).

    Returns:
        The largest load, and per rank its jobs.
    """
    order = np.argsort(-costs, kind="stable")
    jobs, falling = order.tolist(), costs[order].tolist()
    dealt, loads = [[job] for job in jobs[:ranks]], falling[:ranks]
    open_ranks = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(open_ranks)
    for job, cost in zip(jobs[ranks:], falling[ranks:], strict=True):
        load, rank = open_ranks[0]
        dealt[rank].append(job)
        loads[rank] = load = load + cost
        if len(dealt[rank]) == each:
            heapq.heappop(open_ranks)
        else:
            heapq.heapreplace(open_ranks, (load, rank))
    return max(loads), dealt


def deal_to_first_finish(
    costs: FloatArray, speeds: FloatArray, surcharge: float = 0.0, *, every_rank: bool = True
) -> tuple[float, list[list[int]]]:
    """As `deal_longest_first`, each job to the rank of these relative speeds, shape [G], that would end it first.

    Args:
        costs: shape [M].
        speeds: shape [G].
        surcharge: what `costs` hold for every job and a rank's first job does not pay.
        every_rank: whether the last jobs go to ranks that have none.

    Returns:
        The largest load, in time, and per rank its jobs.
    """
    order = np.argsort(-costs, kind="stable")
    dealt: list[list[int]] = [[] for _ in speeds]
    load = np.full(len(speeds), -surcharge)
    idle = len(speeds) if every_rank else 0
    for left, job, cost in zip(range(len(order), 0, -1), order.tolist(), costs[order].tolist(), strict=True):
        finish = (load + cost) / speeds
        if idle == left:
            finish[[bool(own) for own in dealt]] = np.inf
        rank = int(finish.argmin())
        load[rank] += cost
        idle -= not dealt[rank]
        dealt[rank].append(job)
    return float((load / speeds).max()), dealt

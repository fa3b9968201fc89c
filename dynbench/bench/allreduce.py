"""One size of the all-reduce, as each rank runs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.bench.base import Case, Measured
from dynbench.bench.collectives import bus_factor
from dynbench.clock import clock_for
from dynbench.engine.rank.exchange import max_over_ranks, sum_over_ranks, wait_for_all
from dynbench.engine.rank.rank_process import RankContext

KINDS = 5
"""Different values that a rank contributes."""


def contribution(count: int, rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a rank puts in, shape [count]: small whole numbers that depend on the position and on the rank."""
    positions = torch.arange(count, device=device)
    return ((positions * (rank + 1) + rank) % KINDS).to(dtype)


def known_sum(count: int, world_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What comes out, shape [count]; exact in every type for up to `MOST_RANKS` ranks."""
    total = torch.zeros(count, dtype=dtype, device=device)
    for rank in range(world_size):
        total += contribution(count, rank, dtype, device)
    return total


def measure_allreduce(
    case: Case,
    iterations: int,
    warmup: int,
    context: RankContext,
    reduce: Callable[[Tensor], object] = dist.all_reduce,
) -> Measured:
    """Time the iterations, each begun together, and compare the last result with the known sum.

    Args:
        case: its shape, type and size.
        iterations: how many are timed.
        warmup: how many go before them.
        context: this rank; every rank calls this.
        reduce: sums a tensor over ranks, in place.
    """
    dtype, (count,) = getattr(torch, case.dtype), case.shape
    mine = contribution(count, context.rank, dtype, context.device)
    buffer, clock = torch.empty_like(mine), clock_for(context.device)
    times = torch.zeros(warmup + iterations, dtype=torch.float64)
    for index in range(len(times)):
        buffer.copy_(mine)
        clock.synchronise()
        wait_for_all()
        start = clock.mark()
        reduce(buffer)
        end = clock.mark()
        clock.synchronise()
        times[index] = clock.elapsed_ms(start, end)
    max_over_ranks(times)
    difference = (buffer - known_sum(count, context.world_size, dtype, context.device)).abs()
    (wrong,) = sum_over_ranks([float((difference != 0).sum())])
    furthest = torch.tensor([float(difference.max())])
    max_over_ranks(furthest)
    ms = times[warmup:].numpy()
    p95, p99 = map(float, np.percentile(ms, (95, 99)))
    algbw = int(case.columns["size"]) / (ms.mean() * 1e6)
    columns = {
        "time": 1e3 * ms.mean(),
        "algbw": algbw,
        "busbw": algbw * bus_factor(context.world_size),
        "#wrong": int(wrong),
        "p95": p95,
        "p99": p99,
        "processes": context.world_size,
        "backend": "nccl" if context.device.type == "cuda" else "gloo",
    }
    return Measured(ms, columns, float(furthest))

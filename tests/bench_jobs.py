"""What ranks do for the benchmarks: cases measured on the CPU, and collectives on warm ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.bench import collective_calls
from dynbench.bench.base import Benchmark, Row
from dynbench.bench.collectives import Collectives
from dynbench.bench.rank import rows_of
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins.benchmarks import CollectivesOptions

Call = Callable[..., Any]


def rows_here(benchmark: Benchmark) -> list[Row]:
    """The rows of every case, measured in this process on the CPU."""
    context = RankContext(0, 0, 1, torch.device("cpu"))
    return [row for case in benchmark.cases() for row in rows_of(benchmark, case, context)]


def rows_on(rank: int, options: Mapping[str, Any], queued: bool = False) -> list[Row]:
    """The rows of every case, tiny unless asked otherwise; `queued` takes gloo for a back end that queues its calls."""
    small = {"sizes_mib": (0.01,), "backend": ("gloo",), "iterations": 3, "warmup": 1}
    benchmark = Collectives(CollectivesOptions(**{**small, **options}))
    context = RankContext(rank, rank, dist.get_world_size(), torch.device("cpu"))
    with patch.object(collective_calls, "QUEUED", ("gloo",) if queued else ()):
        return [row for case in benchmark.cases() for row in rows_of(benchmark, case, context)]


FUNCTIONS = {
    "all_reduce": "all_reduce",
    "reduce_scatter": collective_calls._reduce_scatter,
    "all_gather": collective_calls._all_gather,
    "broadcast": "broadcast",
    "all_to_all": "all_to_all_single",
    "send_recv": "batch_isend_irecv",
}


def with_a_wrong_one(rank: int, operation: str, fault: str, queued: bool = False) -> Sequence[Row]:
    """Of an operation that rank 1 has wrong: never done, or an element of its result changed."""
    right = getattr(dist, FUNCTIONS[operation])
    calls = 0

    def wrong(first: Any, *more: Any, **named: Any) -> Any:
        nonlocal calls
        result: Tensor = first[1].tensor if operation == "send_recv" else first
        if result.numel() < 10:  # the trial of what the back end has
            return right(first, *more, **named)
        calls += 1
        before = result.clone()
        done = right(first, *more, **named)
        for work in done or ():
            work.wait()
        if rank == 1:
            if fault == "left out":
                result.copy_(before)
            else:
                result[7] += 1
        return []

    with patch.object(dist, FUNCTIONS[operation], wrong):
        found = rows_on(rank, {"operations": (operation,)}, queued)
    assert calls >= 4
    return found


def without(rank: int, error: Exception) -> Sequence[Row]:
    """Where the back end has no reduce_scatter, in these words."""

    def missing(*_: Any, **__: Any) -> None:
        raise error

    with patch.object(dist, FUNCTIONS["reduce_scatter"], missing):
        return rows_on(rank, {"operations": ("all_reduce", "reduce_scatter")})

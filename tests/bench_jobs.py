"""What warm ranks do for the collectives benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.bench import collective_calls
from dynbench.bench.base import Row
from dynbench.bench.collectives import Collectives
from dynbench.bench.rank import rows_of
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins.benchmarks import CollectivesOptions

Call = Callable[..., Any]


def rows_on(rank: int, **options: Any) -> list[Row]:
    """The rows of every case, tiny unless asked otherwise."""
    small = {"sizes_mib": (0.01,), "backend": ("gloo",), "iterations": 3, "warmup": 1}
    benchmark = Collectives(CollectivesOptions(**{**small, **options}))
    ranks = dist.get_world_size()
    context = RankContext(rank, rank, ranks, torch.device("cpu"))
    return [row for case in benchmark.cases() for row in rows_of(benchmark, case, context)]


def rows_with(rank: int, options: Mapping[str, Any]) -> list[Row]:
    """The same with options by name."""
    return rows_on(rank, **options)


FUNCTIONS = {
    "all_reduce": "all_reduce",
    "reduce_scatter": collective_calls._reduce_scatter,
    "all_gather": collective_calls._all_gather,
    "broadcast": "broadcast",
    "all_to_all": "all_to_all_single",
    "send_recv": "batch_isend_irecv",
}


def with_a_wrong_one(rank: int, operation: str, fault: str) -> Sequence[Row]:
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
        found = rows_on(rank, operations=(operation,))
    assert calls >= 4
    return found


def without(rank: int, error: Exception) -> Sequence[Row]:
    """Where the back end has no reduce_scatter, in these words."""

    def missing(*_: Any, **__: Any) -> None:
        raise error

    with patch.object(dist, FUNCTIONS["reduce_scatter"], missing):
        return rows_on(rank, operations=("all_reduce", "reduce_scatter"))


def queued(rank: int, options: Mapping[str, Any]) -> Sequence[Row]:
    """With gloo taken for a back end whose calls are queued."""
    with patch.object(collective_calls, "QUEUED", ("gloo",)):
        return rows_on(rank, **options)


def queued_with_a_wrong_one(rank: int, operation: str, fault: str) -> Sequence[Row]:
    """The same where rank 1 has an operation wrong."""
    with patch.object(collective_calls, "QUEUED", ("gloo",)):
        return with_a_wrong_one(rank, operation, fault)

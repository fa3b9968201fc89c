"""What ranks do for the benchmarks: cases measured on the CPU, and collectives on warm ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist

from dynbench.bench import collective_calls
from dynbench.bench.base import Benchmark, Row
from dynbench.bench.collective_calls import Prepared
from dynbench.bench.rank import rows_of
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins import BENCHMARKS


def made(name: str, **options: object) -> Any:
    """A benchmark by its name."""
    entry = BENCHMARKS.find(name)
    return entry.load()(entry.options(**options))


def rows_here(benchmark: Benchmark, rank: int = 0, ranks: int = 1) -> list[Row]:
    """The rows of every case, measured in this process on the CPU."""
    context = RankContext(rank, rank, ranks, torch.device("cpu"))
    return [row for case in benchmark.cases() for row in rows_of(benchmark, case, context)]


def rows_on(rank: int, options: Mapping[str, Any], queued: bool = False) -> list[Row]:
    """The rows of every case, tiny unless asked otherwise; `queued` takes gloo for a back end that queues its calls."""
    small = {"sizes_mib": (0.01,), "backend": ("gloo",), "iterations": 3, "warmup": 1}
    with patch.object(collective_calls, "QUEUED", ("gloo",) if queued else ()):
        return rows_here(made("collectives", **{**small, **options}), rank, dist.get_world_size())


def with_a_wrong_one(rank: int, operation: str, fault: str, queued: bool = False) -> Sequence[Row]:
    """Of an operation that rank 1 has wrong: never done, or an element of its result changed."""
    prepare = collective_calls.prepare

    def prepared(*given: Any) -> Prepared:
        right = prepare(*given)

        def wrong() -> None:
            before = right.result.clone()
            right.call()
            if rank == 1 and fault == "left out":
                right.result.copy_(before)
            elif rank == 1:
                right.result[7:8] += 1  # of the few of a trial nothing

        return replace(right, call=wrong)

    with patch.object(collective_calls, "prepare", prepared):
        return rows_on(rank, {"operations": (operation,)}, queued)


def without(rank: int, error: Exception) -> Sequence[Row]:
    """Where the back end has no reduce_scatter, in these words."""

    with patch.object(dist, collective_calls._reduce_scatter, Mock(side_effect=error)):
        return rows_on(rank, {"operations": ("all_reduce", "reduce_scatter")})

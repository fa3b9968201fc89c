"""What one rank does in the loop of `dynbench train`, with its model in float64."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.config.schema import Config
from dynbench.engine.rank.loop import real_loop
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.turns import play
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.runs.run import Run
from dynbench.workloads.base import Workload
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
FAULTY = 2
"""The rank that faults are planted on."""
Steps = list[list[int]]
Row = dict[str, float]
Answer = tuple[Steps, list[list[Row]], dict[str, Tensor] | None]
"""The ids of the samples of each step that a process was given; rows of its ranks; the weights, where it has them."""
_built: dict[str, Workload] = {}


def steps(rank: int, folder: str, config: Config, fault: str | None = None) -> Answer:
    """Train as a launched rank does, or as the process that plays all virtual ones.

    Planted faults are `weight` (what the rank's samples count is 1 % more), and `sample` (it leaves one out).
    """
    virtual = config.launch.launcher == "virtual"
    context = RankContext(rank, rank, 1 if virtual else dist.get_world_size(), CPU)
    workload, run, given = built(config), Run(Path(folder)), []
    planted = {"weight": counts_more, "sample": leaves_one_out}[fault] if fault and rank == FAULTY else None
    make = virtual_loop if virtual else real_loop
    with ExitStack() as stack:
        stack.enter_context(in_double(workload))
        if planted is not None:
            stack.enter_context(planted())
        loop: Any = stack.enter_context(make(run, config, context, workload, memory_meter(CPU)))
        verb = "plan" if virtual else "share"
        inner = getattr(loop.plans, verb)

        def noting(step: int) -> Any:
            found = inner(step)
            shares = found.shares if virtual else [found[0]]
            given.append([int(i) for share in shares for ids in share for i in ids])
            return found

        stack.enter_context(patch.object(loop.plans, verb, noting))
        play(config.train, [loop], None, StopFlag(), None)
        state = loop.replica.strategy.full_state()
    ranks = range(config.launch.world_size or 0) if virtual else (rank,)
    return given, [rows_of(run, each) for each in ranks], state


def built(config: Config) -> Workload:
    """The workload with its data, made once in this process for all that train the same."""
    key = config.workload.model_dump_json()
    if key not in _built:
        _built[key] = build_workload(config)
    return _built[key]


@contextmanager
def in_double(workload: Any) -> Iterator[None]:
    """Its models are of float64, so that what differs from one process is no rounding."""
    with ExitStack() as stack:
        for verb in ("build_model", "build_empty_model"):
            if (build := getattr(workload, verb, None)) is not None:
                double = lambda *args, build=build: build(*args).double()  # noqa: E731
                stack.enter_context(patch.object(workload, verb, double))
        yield


def counts_more() -> Any:
    """Fault: what the rank's samples count is 1 % more."""
    compute = Replica.compute
    return patch.object(Replica, "compute", lambda self, batches, scale: compute(self, batches, lambda: 1.01 * scale()))


def leaves_one_out() -> Any:
    """Fault: of every micro-batch of several samples, the last one is not trained on."""
    load = Replica.load
    return patch.object(
        Replica, "load", lambda self, share: load(self, tuple(ids[: max(1, len(ids) - 1)] for ids in share))
    )


def rows_of(run: Run, rank: int) -> list[Row]:
    """What was written of the rank's steps."""
    with run.rank_file(rank).open(newline="") as file:
        wanted = ("loss", "weight", "grad_norm")
        return [{name: float(row[name] or "nan") for name in wanted} for row in csv.DictReader(file)]

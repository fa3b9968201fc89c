"""Runs of a few steps on virtual ranks, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import torch

from dynbench.analysis.rank_files import read_rank_file
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.turns import play
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.plugins import POLICIES
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

CPU, RANKS = torch.device("cpu"), 3
TRAINABLE = [name for name, entry in POLICIES.items() if entry.in_train and not entry.missing]
"""Policies."""


def configured(policy: str, *settings: str) -> Config:
    """Resolved settings of a policy on three virtual ranks without warm-up."""
    given = [
        *(f"schedule.policy={policy}", *(["schedule.window=2"] if policy == "window" else []), "train.warmup_steps=0"),
        *("launch.launcher=virtual", f"launch.world_size={RANKS}", "launch.device=cpu", *settings),
    ]
    return resolve(load_config(None, given), Machine(cores=2, gpus=0, bf16=False), RunStore(Path("nowhere"))).config


@contextmanager
def loop_of(folder: Path, config: Config, workload: Any) -> Iterator[Any]:
    """The loop of a run in a new folder; it plays all steps on the way out."""
    run = Run(folder)
    run.ranks_dir.mkdir(parents=True)
    with virtual_loop(run, config, RankContext(0, 0, 1, CPU), workload, memory_meter(CPU)) as loop:
        yield loop
        play(config.train, [loop], None, StopFlag(), None)


def rows_of(folder: Path) -> pl.DataFrame:
    """The rows of all ranks."""
    run = Run(folder)
    return pl.concat([read_rank_file(rank, run.rank_file(rank)).rows for rank in range(RANKS)])

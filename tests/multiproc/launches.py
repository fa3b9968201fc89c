"""Launching and reading tiny runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import polars as pl

from dynbench.runs.run import Run

TINY = (
    "workload.dropout=0",
    "workload.subset=96",
    "workload.max_length=64",
    "train.global_batch=12",
    "train.warmup_steps=2",
    "train.steps=6",
    "train.eval_samples=16",
    "launch.nproc=2",
    "launch.threads=1",
    "launch.device=cpu",
)
"""Settings of a launch of a few seconds."""
VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2", "launch.nproc=auto")
"""With these, of one process that plays two ranks."""

Launch = Callable[..., Run]


def rows_of(run: Run) -> pl.DataFrame:
    """Rows of all ranks, by step and rank."""
    files = sorted(run.ranks_dir.glob("rank_*.csv"))
    types = {"work_hash": pl.UInt64}
    rows = [pl.read_csv(file, schema_overrides=types) for file in files]
    return pl.concat(rows, how="vertical_relaxed").sort("step", "rank")


def global_loss(run: Run) -> list[float]:
    """Mean loss over the global batch, step by step."""
    weighted = (pl.col("loss") * pl.col("local_batch")).sum() / pl.col("local_batch").sum()
    return rows_of(run).group_by("step").agg(weighted.alias("loss")).sort("step")["loss"].to_list()


def work_hashes(run: Run) -> list[int]:
    """Hash of all ranks' work, step by step."""
    per_step = rows_of(run).group_by("step", maintain_order=True).agg("work_hash")["work_hash"].to_list()
    return [sum(hashes) % 2**64 for hashes in per_step]


def sets(*settings: str) -> list[str]:
    """Options of a command that set these."""
    return [word for setting in settings for word in ("--set", setting)]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)

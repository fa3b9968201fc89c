"""One rank slowed by two: what is measured with speeds known and with speeds estimated."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from multiproc.launches import Launch, rows_of

from dynbench.runs.run import Run

pytestmark = pytest.mark.multiproc

SLOWDOWN = np.array([1.0, 1.0, 1.0, 2.0])
SLOWED = (
    "launch.launcher=virtual",
    "launch.world_size=4",
    "launch.nproc=auto",
    "launch.slowdown={3: 2.0}",
    "workload.subset=1024",
    "workload.max_length=32",
    "train.global_batch=64",
    "train.eval_samples=0",
    "schedule.mode=dynamic",
    "schedule.micro_batches=4",
)


def column(run: Run, name: str) -> np.ndarray:
    """A column of the measured steps, shape [steps, G]."""
    rows = rows_of(run).filter(pl.col("warmup") == 0)
    return rows[name].to_numpy().reshape(-1, rows["rank"].n_unique()).astype(np.float64)


def test_with_known_speeds_the_planned_step_is_within_a_tenth_of_the_bound(launch: Launch) -> None:
    run = launch(*SLOWED, "schedule.speeds=[1.0, 1.0, 1.0, 0.5]", "train.steps=20")
    slowest = (column(run, "padded_tokens") * SLOWDOWN).max(axis=1)
    bound = column(run, "real_tokens").sum(axis=1) / (1 / SLOWDOWN).sum()
    assert slowest.sum() < 1.1 * bound.sum()


@pytest.mark.alone
def test_estimated_speeds_give_the_slow_rank_less_after_fifty_steps(launch: Launch) -> None:
    """Judged in planned work, with room for noisy estimates: equal shares would be 1.75 times the bound."""
    run = launch(*SLOWED, "schedule.speeds=auto", "train.warmup_steps=50", "train.steps=15")
    slowest = (column(run, "padded_tokens") * SLOWDOWN).max(axis=1)
    bound = column(run, "real_tokens").sum(axis=1) / (1 / SLOWDOWN).sum()
    assert slowest.sum() < 1.4 * bound.sum()
    estimates = pl.read_csv(run.path / "speeds.csv")
    assert estimates["step"].unique().sort().to_list() == [10, 20, 30, 40, 50, 60]
    assert estimates.filter(rank=3)["speed"].median() < 0.8


@pytest.mark.alone
def test_real_ranks_derive_the_same_speeds(launch: Launch) -> None:
    run = launch("schedule.mode=dynamic", "schedule.speeds=auto", "schedule.replan_steps=4", "launch.slowdown={1: 4.0}")
    tokens = column(run, "padded_tokens")[-2:].sum(axis=0)
    assert tokens[0] > 1.5 * tokens[1]
    assert pl.read_csv(run.path / "speeds.csv").filter(rank=1)["speed"].max() < 0.7

"""Training within capacities: obeyed in every step, split into micro-batches where asked for, refused where not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from multiproc.launches import TINY, Launch, fork, rows_of

pytestmark = pytest.mark.multiproc

BINDING = ("schedule.mode=dynamic", "schedule.capacity=7")
STEPS = ("train.steps=20", "train.eval_samples=0")


def test_a_capacity_that_binds_is_never_exceeded(launch: Launch) -> None:
    free = rows_of(launch("schedule.mode=dynamic", *STEPS))
    bound = rows_of(launch(*BINDING, *STEPS))
    assert free["local_batch"].max() > 7, "the capacity would not bind"
    assert bound["local_batch"].max() == 7
    assert bound["micro_batches"].max() == 1


def test_a_batch_that_does_not_fit_is_split_where_asked_for(launch: Launch) -> None:
    rows = rows_of(launch("schedule.mode=dynamic", "schedule.capacity=4", "schedule.micro_batches=auto"))
    assert (rows["micro_batches"] >= 2).any()
    assert (rows["local_batch"] <= 4 * rows["micro_batches"]).all()
    steps = rows.group_by("step").agg(pl.col("local_batch").sum())
    assert steps["local_batch"].unique().to_list() == [12]


def test_otherwise_it_is_refused_with_the_largest_that_fits(tmp_path: Path) -> None:
    settings = (*TINY, "schedule.mode=dynamic", "schedule.capacity=4")
    process = fork(tmp_path, "train", settings=settings)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 4
    assert "--global-batch 8, the largest below 12 that fits in all 8 steps" in stderr
    assert not list(tmp_path.glob("2*")), "nothing was launched"


def test_a_baseline_that_obeys_no_capacity_is_refused(tmp_path: Path) -> None:
    settings = (*TINY, "schedule.policy=sorted_equal", "schedule.capacity=8")
    process = fork(tmp_path, "train", settings=settings)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "obeys no capacities" in stderr

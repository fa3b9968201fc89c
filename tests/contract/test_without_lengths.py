"""Workloads whose samples have no lengths: policies that deal by lengths are refused, capacities and speeds decide.

That they train under the others is judged in tests/contract/test_workloads.py, as for every workload.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest
import torch

from dynbench.analysis.rank_files import read_rank_file
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.turns import play
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.errors import ConfigError
from dynbench.plugins import POLICIES, WORKLOADS
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.workloads.base import Workload
from dynbench.workloads.registry import build_workload

CPU, RANKS, STEPS, BATCH = torch.device("cpu"), 3, 3, 12
SMALLEST = {"image_classification": ("size=small", "image_size=16"), "mlp": ()}
"""Settings of every such workload that make a step take a moment."""
TRAINABLE = [name for name, entry in POLICIES.items() if entry.in_train]
USEFUL = [name for name in TRAINABLE if POLICIES[name].without_lengths]


def configured(workload: str, policy: str, *more: str) -> Config:
    window = ["schedule.window=3"] if policy == "window" else []
    settings = [
        *(f"workload.{each}" for each in (f"name={workload}", "subset=96", *SMALLEST[workload])),
        *(f"schedule.policy={policy}", *window, f"train.global_batch={BATCH}", f"train.steps={STEPS}"),
        *("train.warmup_steps=0", "train.eval_samples=0", "launch.launcher=virtual", f"launch.world_size={RANKS}"),
        *("launch.device=cpu", *more),
    ]
    return resolve(load_config(None, settings), Machine(cores=2, gpus=0, bf16=False), RunStore(Path("nowhere"))).config


@cache
def built(name: str) -> Workload:
    """The workload with its data, once for all policies."""
    return build_workload(configured(name, "static"))


def trained(folder: Path, workload: str, policy: str, *more: str) -> pl.DataFrame:
    """The rows of all ranks."""
    run, config = Run(folder), configured(workload, policy, *more)
    run.ranks_dir.mkdir(parents=True)
    with virtual_loop(run, config, RankContext(0, 0, 1, CPU), built(workload), memory_meter(CPU)) as loop:
        play(config.train, [loop], None, StopFlag(), None)
    return pl.concat([read_rank_file(rank, run.rank_file(rank)).rows for rank in range(RANKS)])


def test_every_one_of_them_is_tried() -> None:
    assert list(SMALLEST) == [name for name, entry in WORKLOADS.items() if entry.lengths is None]


@pytest.mark.parametrize("policy", [name for name in TRAINABLE if name not in USEFUL])
@pytest.mark.parametrize("workload", SMALLEST)
def test_what_deals_by_lengths_is_refused_by_name(workload: str, policy: str) -> None:
    with pytest.raises(ConfigError, match=f"'{policy}' deals samples by their lengths, and those of {workload}"):
        configured(workload, policy)


@pytest.mark.parametrize("workload", SMALLEST)
def test_packed_rows_are_refused_by_name(workload: str) -> None:
    with pytest.raises(ConfigError, match=f"'packed' leaves out padding, which samples of {workload} do not have"):
        configured(workload, "static", "workload.layout=packed")


@pytest.mark.parametrize("policy", USEFUL)
@pytest.mark.parametrize("workload", SMALLEST)
def test_a_sample_counts_as_one_token_and_right_answers_are_counted(tmp_path: Path, workload: str, policy: str) -> None:
    rows = trained(tmp_path, workload, policy)
    assert (rows["local_batch"] == BATCH // RANKS).all(), "equal ranks share equally"
    assert (rows["padded_tokens"] == rows["local_batch"]).all() and (rows["real_tokens"] == rows["local_batch"]).all()
    assert rows["correct"].is_between(0, rows["local_batch"]).all()


@pytest.mark.parametrize("policy", [name for name in USEFUL if name != "static"])
@pytest.mark.parametrize("workload", SMALLEST)
def test_capacities_and_speeds_decide_counts(tmp_path: Path, workload: str, policy: str) -> None:
    capped = trained(tmp_path / "capped", workload, policy, "schedule.capacity=[2, 8, 8]")
    assert capped.filter(pl.col("rank") == 0)["local_batch"].max() <= 2
    uneven = trained(tmp_path / "uneven", workload, policy, "schedule.speeds=[1, 1, 0.5]")
    counts = uneven.group_by("rank").agg(pl.col("local_batch").sum()).sort("rank")["local_batch"].to_list()
    assert counts[2] < counts[0]

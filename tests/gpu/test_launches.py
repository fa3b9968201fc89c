"""Real launches on GPUs: virtual ranks on one, NCCL on two, and a probe that meets the end of its memory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from multiproc.launches import TINY, VIRTUAL, global_loss, rows_of
from strategy_jobs import watched_steps
from warm import WarmRanks

from dynbench.config.layers import load_config
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.errors import NothingFits
from dynbench.probe.prober import run_probe
from dynbench.runs.probe_record import read_probe
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.gpu, pytest.mark.multiproc]

ON_GPU = (*TINY, "launch.device=cuda", "schedule.mode=dynamic", "workload.pad_to_multiple_of=1")


def launched(folder: Path, *settings: str) -> Run:
    return launch_arms([(load_config(None, [*ON_GPU, *settings]), {})], RunStore(folder))[0]


def test_virtual_ranks_on_one_gpu_train_as_on_the_cpu(tmp_path: Path) -> None:
    gpu = launched(tmp_path, *VIRTUAL, "train.precision=fp32")
    cpu = launched(tmp_path, *VIRTUAL, "train.precision=fp32", "launch.device=cpu")
    assert gpu.status is Status.COMPLETED
    assert global_loss(gpu) == pytest.approx(global_loss(cpu), rel=1e-2)
    columns = ("step", "rank", "local_batch", "padded_tokens", "work_hash")
    assert rows_of(gpu).select(columns).rows() == rows_of(cpu).select(columns).rows()


def test_every_steps_peak_is_its_own(tmp_path: Path) -> None:
    rows = rows_of(launched(tmp_path, *VIRTUAL, "train.steps=30")).filter(pl.col("warmup") == 0)
    assert (rows["peak_mem_mb"] <= rows["reserved_mem_mb"]).all()
    least, most = (rows.filter(pl.col("padded_tokens") == find)["peak_mem_mb"].mean() for find in
                   (rows["padded_tokens"].min(), rows["padded_tokens"].max()))  # fmt: skip
    assert least < most


def test_half_precision_trains(tmp_path: Path) -> None:
    assert rows_of(launched(tmp_path, *VIRTUAL, "train.precision=fp16"))["loss"].is_finite().all()


@pytest.mark.usefixtures("two_gpus")
def test_nccls_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    with closing(WarmRanks(tmp_path, 2, "cpu:gloo,cuda:nccl")) as nccl:
        steps = nccl(watched_steps, "ddp", "none", False, False, True)
    assert max(step["error"] for step in steps[0]) < 1e-9


@pytest.mark.usefixtures("two_gpus")
def test_two_ranks_train_as_two_virtual_ones(tmp_path: Path) -> None:
    real, virtual = launched(tmp_path, "train.precision=fp32"), launched(tmp_path, *VIRTUAL, "train.precision=fp32")
    assert global_loss(real) == pytest.approx(global_loss(virtual), rel=1e-3)
    rows = rows_of(real)
    assert (rows["comm_ms"] > 0).all() and (rows["sync_ms"] >= 0).all()


def probed(folder: Path, fraction: float) -> Run:
    settings = ("probe.lengths=[128]", "probe.soak_steps=3", "probe.repeats=2", "train.global_batch=8192")
    one = ("launch.nproc=1", "workload.dropout=0", f"probe.memory_fraction={fraction}")
    config = load_config(None, ["launch.device=cuda", "launch.threads=1", *one, *settings])
    return run_probe(config, RunStore(folder), report=lambda text: None)


def test_a_probe_finds_what_fits_in_its_part_of_the_memory(tmp_path: Path) -> None:
    found = {fraction: read_probe(probed(tmp_path, fraction).path).capacity[0] for fraction in (0.03, 0.06)}
    for row in found.values():
        assert row.tested_fail is not None
        assert row.tested_ok < row.tested_fail <= max(row.tested_ok + 1, 1.06 * row.tested_ok)
        assert row.max_batch <= 0.9 * row.tested_ok
    assert found[0.06].tested_ok > 1.5 * found[0.03].tested_ok


def test_a_part_in_which_the_model_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingFits):
        probed(tmp_path, 1e-6)

"""srun's variables say the same as torchrun's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from dynbench.config.layers import load_config
from dynbench.engine.launching.run_launch import _reported, slurm_as_torchrun
from dynbench.engine.launching.torchrun import started_as_rank
from dynbench.engine.rank.rank_process import RankContext
from dynbench.errors import Interrupted, Terminated, UsageError
from dynbench.runs.store import RunStore

SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "node7",
}


def test_srun() -> None:
    assert slurm_as_torchrun(SRUN) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "32956",
    }
    assert slurm_as_torchrun({**SRUN, "MASTER_ADDR": "a", "MASTER_PORT": "5"})["MASTER_ADDR"] == "a"
    assert slurm_as_torchrun({**SRUN, "RANK": "3"}) == {}


def test_unknown_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="cannot be found out") as caught:
        slurm_as_torchrun({**SRUN, "SLURM_STEP_NODELIST": "node[7-9]"})
    assert "MASTER_ADDR" in caught.value.hint


def test_who_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", *SRUN):
        monkeypatch.delenv(variable, raising=False)
    alone, nodes = load_config(), load_config(None, ["launch.nnodes=2", "launch.rdzv_endpoint=a:1"])
    assert not started_as_rank(alone)
    for key, value in SRUN.items():
        monkeypatch.setenv(key, value)
    assert started_as_rank(alone)
    assert not started_as_rank(nodes)
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(key, "0")
    assert started_as_rank(nodes)


@pytest.mark.parametrize(
    ("error", "signum"),
    [
        (Terminated(signal.SIGHUP), signal.SIGHUP),
        (KeyboardInterrupt(), signal.SIGINT),
        (SystemExit(128 + signal.SIGHUP), signal.SIGHUP),
    ],
)
def test_a_rank_that_was_told_to_stop_did_not_fail(tmp_path: Path, error: BaseException, signum: int) -> None:
    first = RankContext(0, 0, 2, torch.device("cpu"))
    reported = _reported(RunStore(tmp_path).create("train", "static"), first, error)
    assert isinstance(reported, Interrupted)
    assert reported.exit_code == 128 + signum

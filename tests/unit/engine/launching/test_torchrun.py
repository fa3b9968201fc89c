"""The torchrun line is one that this torchrun accepts, and the environment comes back as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching import torchrun
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import thread_environment, torchrun_argv
from dynbench.runs.store import RunStore


def resolved(*overrides: str) -> Config:
    machine = Machine(cores=2, gpus=0, bf16=False)
    return resolve(load_config(None, overrides), machine, RunStore(Path("nowhere"))).config


def test_one_node() -> None:
    options = get_args_parser().parse_args(torchrun_argv(WORKER_MODULE, [Path("results/r1")], resolved().launch))
    assert options.standalone and options.nproc_per_node == "2"
    assert options.max_restarts == 0 and options.redirects == "3"
    assert options.log_dir == "results/r1/logs/torchrun"
    assert options.module and options.training_script == "dynbench.engine.rank.worker"
    assert options.training_script_args == ["results/r1"]


def test_rendezvous_flags_pass_through() -> None:
    several = resolved(
        "launch.nnodes=2", "launch.node_rank=1", "launch.rdzv_endpoint=host:29400", "launch.rdzv_id=job7"
    )
    options = get_args_parser().parse_args(torchrun_argv(WORKER_MODULE, [Path("r")], several.launch))
    assert not options.standalone
    assert (options.nnodes, options.node_rank, options.rdzv_id) == ("2", 1, "job7")
    assert (options.rdzv_endpoint, options.rdzv_backend) == ("host:29400", "c10d")


def test_threads_are_set() -> None:
    assert thread_environment(3)["OMP_NUM_THREADS"] == "3"


def test_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def fake_run(_options: object) -> None:
        seen.update(os.environ)
        os.environ["LEFT_BY_TORCHRUN"] = "1"

    monkeypatch.setattr(torchrun, "run", fake_run)
    before = dict(os.environ)
    assert torchrun.run_torchrun(["x.py"], {"OMP_NUM_THREADS": "5"}) == {}
    assert seen["OMP_NUM_THREADS"] == "5"
    assert dict(os.environ) == before

"""Ranks started by torchrun: its command line, the environment, what is left behind, and who is a rank already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from probes import resolved
from torch.distributed.run import get_args_parser

from dynbench.config.layers import load_config
from dynbench.engine.launching import torchrun
from dynbench.engine.launching.run_launch import WORKER_MODULE, _reported, slurm_as_torchrun
from dynbench.engine.launching.torchrun import (
    marked_environment,
    rank_pids,
    started_as_rank,
    stop_leftovers,
    thread_environment,
    torchrun_argv,
)
from dynbench.engine.rank.rank_process import RankContext
from dynbench.errors import Interrupted, Terminated, UsageError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def options_of(*settings: str) -> Namespace:
    """How torchrun reads what it is given."""
    argv = torchrun_argv(WORKER_MODULE, [Path("results/r1")], resolved(*settings).config.launch)
    return get_args_parser().parse_args(argv)


def test_one_node():
    options = options_of()
    assert options.standalone and options.nproc_per_node == "2"
    assert options.max_restarts == 0 and options.redirects == "3"
    assert options.log_dir == "results/r1/logs/torchrun"
    assert options.module and options.training_script == "dynbench.engine.rank.worker"
    assert options.training_script_args == ["results/r1"]


def test_rendezvous_flags_pass_through():
    given = ("launch.nnodes=2", "launch.node_rank=1", "launch.rdzv_endpoint=host:29400", "launch.rdzv_id=job7")
    options = options_of(*given)
    assert (options.nnodes, options.node_rank, options.rdzv_id) == ("2", 1, "job7")
    assert (options.rdzv_endpoint, options.rdzv_backend, options.standalone) == ("host:29400", "c10d", False)


def test_environment_is_restored(monkeypatch):
    seen = {}

    def fake_run(_options: object) -> None:
        seen.update(os.environ)
        os.environ["LEFT_BY_TORCHRUN"] = "1"

    monkeypatch.setattr(torchrun, "run", fake_run)
    before = dict(os.environ)
    ended = torchrun.run_torchrun(["x.py"], thread_environment(5))
    assert (ended.exit_codes, ended.lost) == ({}, None)
    assert seen["OMP_NUM_THREADS"] == "5"
    assert dict(os.environ) == before


def test_what_a_rank_had_started_ends_and_nothing_of_the_launcher_or_of_another_run(tmp_path):
    """Ranks are known by their command line, also in a folder whose name is no UTF-8, what they start by a mark."""
    run, other = Run(tmp_path / os.fsdecode(b"caf\xe9 and more") / "run"), Run(tmp_path / "run")
    words = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    mark, of_rank = marked_environment(run), {"RANK": "1"}
    started = {
        "rank": ([*words, "a.module", run.path], {}),
        "of the rank": (words, mark | of_rank),
        "of the launcher": (words, mark),
        "of another run": (words, marked_environment(other) | of_rank),
    }
    own = {name: value for name, value in os.environ.items() if name != "RANK"}
    processes = {
        name: subprocess.Popen(command, **pipes, env={**own, **marks}) for name, (command, marks) in started.items()
    }
    try:
        for each in processes.values():
            assert each.stdout.readline(), "it runs, and has its environment"
        assert rank_pids("a.module", run) == [processes["rank"].pid] and rank_pids("a.module", other) == []
        stop_leftovers("a.module", run)
        for name, each in processes.items():
            if "rank" in name:
                assert each.wait(30) == -signal.SIGTERM
            else:
                assert each.poll() is None
    finally:
        for each in processes.values():
            each.kill()
            each.communicate()


SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "node7",
}


def test_srun():
    rank = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    assert slurm_as_torchrun(SRUN) == {**rank, "MASTER_ADDR": "node7", "MASTER_PORT": "32956"}
    assert slurm_as_torchrun({**SRUN, "MASTER_ADDR": "a", "MASTER_PORT": "5"})["MASTER_ADDR"] == "a"
    assert slurm_as_torchrun({**SRUN, "RANK": "3"}) == {}


def test_unknown_first_node(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="cannot be found out") as caught:
        slurm_as_torchrun({**SRUN, "SLURM_STEP_NODELIST": "node[7-9]"})
    assert "MASTER_ADDR" in caught.value.hint


def test_who_is_a_rank(monkeypatch):
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
def test_a_rank_that_was_told_to_stop_did_not_fail(tmp_path, error, signum):
    first = RankContext(0, 0, 2, torch.device("cpu"))
    reported = _reported(RunStore(tmp_path).create("train", "static"), first, error)
    assert isinstance(reported, Interrupted)
    assert reported.exit_code == 128 + signum

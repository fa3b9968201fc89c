"""Ranks started by torchrun: its command line and environment, what is left behind, imported, and a rank already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from probes import resolved
from torch.distributed.run import get_args_parser

from dynbench.config.layers import load_config
from dynbench.engine.launching import torchrun
from dynbench.engine.launching.run_launch import WORKER_MODULE, _reported, slurm_as_torchrun
from dynbench.engine.rank.rank_process import RankContext
from dynbench.errors import Interrupted, Terminated, UsageError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def test_rendezvous_flags_pass_through():
    """What torchrun reads of what it is given."""
    given = ("launch.nnodes=2", "launch.node_rank=1", "launch.rdzv_endpoint=host:29400", "launch.rdzv_id=job7")
    argv = torchrun.torchrun_argv(WORKER_MODULE, [Path("results/r1")], resolved(*given).config.launch)
    options = get_args_parser().parse_args(argv)
    assert (options.nnodes, options.node_rank, options.rdzv_id) == ("2", 1, "job7")
    assert (options.rdzv_endpoint, options.rdzv_backend, options.standalone) == ("host:29400", "c10d", False)
    assert (options.max_restarts, options.redirects, options.log_dir) == (0, "3", "results/r1/logs/torchrun")


def test_environment_is_restored(monkeypatch):
    seen = {}

    def fake_run(_options: object) -> None:
        seen.update(os.environ)
        os.environ["LEFT_BY_TORCHRUN"] = "1"

    monkeypatch.setattr(torchrun, "run", fake_run)
    before = dict(os.environ)
    ended = torchrun.run_torchrun(["x.py"], torchrun.thread_environment(5))
    assert (ended.exit_codes, ended.lost) == ({}, None)
    assert seen["OMP_NUM_THREADS"] == "5"
    assert dict(os.environ) == before


def test_what_a_rank_had_started_ends_and_nothing_of_the_launcher_or_of_another_run(tmp_path):
    """Ranks are known by their command line, also in a folder whose name is no UTF-8, what they start by a mark."""
    run, other = Run(tmp_path / os.fsdecode(b"caf\xe9 and more") / "run"), Run(tmp_path / "run")
    words = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    mark, of_rank = torchrun.marked_environment(run), {"RANK": "1"}
    started = {
        "rank": ([*words, "a.module", run.path], {}),
        "of the rank": (words, mark | of_rank),
        "of the launcher": (words, mark),
        "of another run": (words, torchrun.marked_environment(other) | of_rank),
    }
    own = {name: value for name, value in os.environ.items() if name != "RANK"}
    with ExitStack() as stack:
        processes = {}
        for name, (command, marks) in started.items():
            each = processes[name] = stack.enter_context(subprocess.Popen(command, **pipes, env={**own, **marks}))
            stack.callback(each.kill)
            assert each.stdout.readline(), "it runs, and has its environment"
        found = [torchrun.rank_pids("a.module", each) for each in (run, other)]
        assert found == [[processes["rank"].pid], []]
        torchrun.stop_leftovers("a.module", run)
        for name, each in processes.items():
            if "rank" in name:
                assert each.wait(30) == -signal.SIGTERM
            else:
                assert each.poll() is None


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
    assert not torchrun.started_as_rank(alone)
    for key, value in SRUN.items():
        monkeypatch.setenv(key, value)
    assert torchrun.started_as_rank(alone)
    assert not torchrun.started_as_rank(nodes)
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(key, "0")
    assert torchrun.started_as_rank(nodes)


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


NOT_OF_THE_LAUNCHER = ("accelerate", "datasets", "matplotlib", "pandas", "polars", "scipy", "transformers")
NOT_OF_A_RANK = ("datasets", "matplotlib", "polars", "tensorboard")
PROGRAM = """
import json, os, sys
from pathlib import Path
from dynbench.config.layers import load_config
from dynbench.engine.launching import run_launch
from dynbench.experiment.training import run_training
from dynbench.runs.store import RunStore

config = load_config(None, json.loads(sys.argv[2]))

def imported(names):
    return [name for name in names if name in sys.modules]

def ranks(*_):
    launcher = imported(json.loads(sys.argv[3]))
    from dynbench.engine.rank import worker
    from dynbench.workloads.registry import build_workload, import_model_code

    workload = build_workload(config)
    import_model_code(config.workload)
    before = set(sys.modules)
    workload.build_model(0)
    late = sorted(name for name in set(sys.modules) - before if name.startswith("transformers."))
    print(json.dumps([launcher, imported(json.loads(sys.argv[4])), late]), flush=True)
    os._exit(0)

run_launch.launch_ranks = ranks
run_training(config, RunStore(Path(sys.argv[1])), figures=True)
"""


@pytest.mark.slow
def test_the_launcher_imports_nothing_that_can_wait_and_a_rank_all_that_its_model_is_made_by(tmp_path):
    """A rank imports while it waits for its data; the launcher's end stands for a rank's beginning."""
    articles = tmp_path / "articles.json"
    articles.write_text(json.dumps([{"id": n, "title": "t", "text": f"text {n}"} for n in range(200)]))
    workload = ("name=causal_lm", "size=tiny", "dataset=json", f"data_path={articles}", f"cache_dir={tmp_path}")
    settings = [*(f"workload.{each}" for each in workload), "launch.nproc=2", "launch.device=cpu"]
    given = map(json.dumps, (settings, NOT_OF_THE_LAUNCHER, NOT_OF_A_RANK))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "results"), *given]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    assert json.loads(ended.stdout) == [[], [], []], "of the launcher, of a rank, and late"

"""Two launchers on loopback as two nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from multiproc.launches import TINY, fork, rows_of, start, wait_until

from dynbench.analysis.analyze import analyze_runs
from dynbench.config.schema import Analysis
from dynbench.engine.launching.run_launch import WORKER_MODULE
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

ONE_RANK = tuple(setting for setting in TINY if not setting.startswith("launch.nproc"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def lines_written(results: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in results.glob("*/ranks/rank_*.csv"))


def node_arguments(node: int, port: int, *more: str) -> tuple[str, ...]:
    rendezvous = ("--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "t")
    return ("train", "--json", "--nproc", "1", "--name", "both", *rendezvous, *more)


def start_node(results: Path, node: int, port: int, *more: str) -> subprocess.Popen[str]:
    return start(results, *node_arguments(node, port, *more), settings=ONE_RANK)


def fork_node(results: Path, node: int, port: int, *more: str, first: str = "") -> subprocess.Popen[str]:
    return fork(results, *node_arguments(node, port, *more), settings=ONE_RANK, first=first)


def test_nodes_with_a_shared_folder_make_one_run(tmp_path: Path) -> None:
    port = free_port()
    nodes = [fork_node(tmp_path, node, port) for node in (0, 1)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    runs = RunStore(tmp_path).list()
    assert len(runs) == 1 and {json.loads(out)["run"]["id"] for out, _ in outputs} == {runs[0].id}
    assert rows_of(runs[0]).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert runs[0].name == "both"
    assert sorted(log.name for log in runs[0].logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_nodes_with_their_own_folders_keep_one_id(tmp_path: Path) -> None:
    port = free_port()
    nodes = [fork_node(tmp_path / str(node), node, port) for node in (0, 1)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    runs = [RunStore(tmp_path / str(node)).list()[0] for node in (0, 1)]
    assert runs[0].id == runs[1].id == runs[0].record().id == runs[1].record().id
    assert [run.name for run in runs] == ["both", "both"]
    assert {path.name for run in runs for path in run.ranks_dir.glob("rank_*.csv")} == {"rank_0.csv", "rank_1.csv"}
    report = analyze_runs(runs, RunStore(tmp_path / "0"), Analysis())
    (merged,) = report.runs
    assert (merged.run.id, merged.ranks, merged.world_size, merged.partial) == (runs[0].id, (0, 1), 2, False)


def test_nodes_that_disagree_are_refused(tmp_path: Path) -> None:
    port = free_port()
    nodes = [fork_node(tmp_path, node, port, "--seed", str(node)) for node in (0, 1)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2], outputs
    assert "nodes disagree in config: train.seed" in json.loads(outputs[0][0])["error"]["message"]


FAULT = """
import torch
from dynbench.workloads.text_classification import TextClassification
loss, calls = TextClassification.loss, []

def faulty(self, model, batch):
    calls.append(batch)
    if len(calls) == 4:
        raise {error}("planted")
    return loss(self, model, batch)

TextClassification.loss = faulty
"""
"""The rank of a node where this comes first fails in its fourth step."""
ERRORS = {"memory": "torch.OutOfMemoryError", "worker": "ValueError"}


@pytest.mark.parametrize(
    ("fault", "shared", "status", "exit_code"),
    [
        pytest.param("memory", True, Status.OOM, 4, marks=pytest.mark.matrix),
        ("memory", False, Status.OOM, 4),
        ("worker", True, Status.FAILED, 3),
    ],
)
def test_what_ends_a_rank_of_the_second_node_is_told_on_both(
    tmp_path: Path, fault: str, shared: bool, status: Status, exit_code: int
) -> None:
    stores = [RunStore(tmp_path / ("results" if shared else str(node))) for node in (0, 1)]
    port, planted = free_port(), FAULT.format(error=ERRORS[fault])
    nodes = [fork_node(stores[0].root, 0, port), fork_node(stores[1].root, 1, port, first=planted)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [exit_code, exit_code], outputs
    for store, (stdout, _) in zip(stores, outputs, strict=True):
        assert "planted" in json.loads(stdout)["error"]["message"]
        (run,) = store.list()
        failure = run.record().failure
        assert failure is not None and (run.status, failure.kind) == (status, fault)
        assert "planted" in failure.message


def test_a_lost_node_ends_the_other(tmp_path: Path) -> None:
    port = free_port()
    endless = ("--steps", "100000", "--set", "launch.timeout_s=20")
    nodes = [start_node(tmp_path / str(node), node, port, *endless) for node in (0, 1)]
    stores = [RunStore(tmp_path / str(node)) for node in (0, 1)]
    wait_until(lambda: all(lines_written(store.root) > 3 for store in stores), "rows of both nodes")
    victim = stores[1].list()[0]
    for pid in [*rank_pids(WORKER_MODULE, victim), nodes[1].pid]:
        os.kill(pid, signal.SIGKILL)
    _, stderr = nodes[0].communicate(timeout=300)
    nodes[1].communicate()
    assert nodes[0].returncode == 3, stderr
    survivor = stores[0].list()[0]
    assert survivor.status is Status.FAILED
    assert len(rows_of(survivor)) > 0
    assert rank_pids(WORKER_MODULE, survivor) == []

"""Two launchers on loopback as two nodes; ranks that the user's torchrun starts; ranks that wait for one's data."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen
from multiproc.faults import TORCHRUN
from multiproc.launches import TINY, command, environment, fork, rows_of
from pixel import UNRENDERED
from planted import at

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.selection import Selection
from dynbench.config.schema import Analysis
from dynbench.runs.run import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

ONE_RANK = tuple(setting for setting in TINY if not setting.startswith("launch.nproc"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fork_node(results: Path, node: int, port: int, *more: str, first: str = "") -> subprocess.Popen[str]:
    rendezvous = ("--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "t")
    words = ("train", "--json", "--nproc", "1", "--name", "both", *rendezvous, *more)
    return fork(results, *words, settings=ONE_RANK, first=first)


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
    report = analyze_runs(Selection(runs), RunStore(tmp_path / "0"), Analysis())
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
    lost = ("", at("launcher killed", "forward", rank=1, step=4))
    nodes = [fork_node(tmp_path / str(node), node, port, *endless, first=lost[node]) for node in (0, 1)]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [3, -signal.SIGKILL], outputs
    (survivor,) = RunStore(tmp_path / "0").list()
    assert survivor.status is Status.FAILED
    assert len(rows_of(survivor)) >= 4


def under_torchrun(results: Path, *arguments: str, figures: bool = False) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that a user's torchrun runs on every rank."""
    python, *words = command(*arguments, figures=figures)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment(results)}
    process = ForkedPopen([python, *TORCHRUN, *words], forks=True, first=UNRENDERED, **pipes)
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def test_inside_torchrun(tmp_path: Path) -> None:
    code, stdout, stderr = under_torchrun(
        tmp_path, "train", "--json", "--name", "inner", "--subset", "1000000", figures=True
    )
    assert code == 0, stderr
    printed = json.loads(stdout)
    runs = RunStore(tmp_path).list()
    assert [run.id for run in runs] == [printed["run"]["id"]]
    assert runs[0].status is Status.COMPLETED and runs[0].name == "inner"
    assert rows_of(runs[0]).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert printed["summary"]["world_size"] == 2
    assert printed["figures"] and all(Path(figure).is_file() for figure in printed["figures"])
    assert runs[0].config().launch.nproc == 2
    assert len([warning for warning in runs[0].record().warnings if "1000000 of" in warning]) == 1


def test_a_mistake_inside_torchrun_is_told_once(tmp_path: Path) -> None:
    RunStore(tmp_path).create("train", "static", name="taken")
    _, stdout, stderr = under_torchrun(tmp_path, "train", "--json", "--name", "taken")
    assert json.loads(stdout)["error"]["kind"] == "run"
    assert "bug in dynbench" not in stderr


RANK_PROGRAM = Path(__file__).with_name("preparing_rank.py")
ONE_NODE, TWO_NODES = (0, 1), (0, 0)
"""Local ranks."""


def ended(folder: Path, local_ranks: tuple[int, int], slow_rank: int, what: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of both ranks."""
    ranks = [
        ForkedPopen(
            [sys.executable, str(RANK_PROGRAM), str(rank), str(local_rank), str(folder / "meet"), str(slow_rank), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, local_rank in enumerate(local_ranks)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.mark.parametrize(("local_ranks", "slow_rank"), [(ONE_NODE, 0), (ONE_NODE, 1), (TWO_NODES, 1)])
def test_preparing_data_may_take_longer_than_a_collective(
    tmp_path: Path, local_ranks: tuple[int, int], slow_rank: int
) -> None:
    found = ended(tmp_path, local_ranks, slow_rank, "is slow")
    assert [(code, out.strip()) for code, out, _ in found] == [(0, "data")] * 2, found


@pytest.mark.parametrize("what", ["dies", "fails"])
def test_nobody_waits_for_a_rank_that_is_gone(tmp_path: Path, what: str) -> None:
    (code, _, errors), (waiting, _, noticed) = ended(tmp_path, ONE_NODE, 0, what)
    assert code == (-9 if what == "dies" else 1), errors
    assert waiting == 1 and "onnection closed by peer" in noticed

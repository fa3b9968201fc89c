"""Two launchers on loopback as two nodes; ranks that the user's torchrun starts; ranks that wait for one's data."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from multiproc.faults import TORCHRUN, Command
from multiproc.launches import TINY, fork, rows_of
from multiproc.preparing_rank import prepared
from pixel import UNRENDERED
from planted import at
from warm import RankError, WarmRanks

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.selection import Selection
from dynbench.config.schema import Analysis
from dynbench.runs.run import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

ONE_RANK = tuple(setting for setting in TINY if not setting.startswith("launch.nproc"))
Ended = list[tuple[int, dict[str, Any]]]
"""Exit codes and JSON objects."""
NONE: tuple[str, ...] = ()


def both_nodes(
    folders: Sequence[Path], *more: str, own: Sequence[Sequence[str]] = (NONE, NONE), firsts: Sequence[str] = ("", "")
) -> Ended:
    """Two launchers with a rank each, with words of both and of each its own, and statements that run first."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    given = ("train", "--json", "--nproc", "1", "--name", "both", "--rdzv-endpoint", f"127.0.0.1:{port}")
    nodes = [
        fork(
            folder, *given, "--rdzv-id", "t", "--nnodes", "2", "--node-rank", str(node), *more, *own[node],
            settings=ONE_RANK, first=first,
        )
        for node, (folder, first) in enumerate(zip(folders, firsts, strict=True))
    ]  # fmt: skip
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    return [(node.returncode, json.loads(out or "{}")) for node, out in zip(nodes, outputs, strict=True)]


def own_folders(folder: Path) -> list[Path]:
    return [folder / "0", folder / "1"]


def test_nodes_with_a_shared_folder_make_one_run(tmp_path: Path) -> None:
    found = both_nodes([tmp_path] * 2)
    assert [code for code, _ in found] == [0, 0], found
    (run,) = RunStore(tmp_path).list()
    assert {said["run"]["id"] for _, said in found} == {run.id}
    assert rows_of(run).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert run.name == "both"
    assert sorted(log.name for log in run.logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_nodes_with_their_own_folders_keep_one_id(tmp_path: Path) -> None:
    found = both_nodes(own_folders(tmp_path))
    assert [code for code, _ in found] == [0, 0], found
    runs = [RunStore(folder).list()[0] for folder in own_folders(tmp_path)]
    assert runs[0].id == runs[1].id == runs[0].record().id == runs[1].record().id
    assert [run.name for run in runs] == ["both", "both"]
    assert {path.name for run in runs for path in run.ranks_dir.glob("rank_*.csv")} == {"rank_0.csv", "rank_1.csv"}
    report = analyze_runs(Selection(runs), RunStore(tmp_path / "0"), Analysis())
    (merged,) = report.runs
    assert (merged.run.id, merged.ranks, merged.world_size, merged.partial) == (runs[0].id, (0, 1), 2, False)


def test_nodes_that_disagree_are_refused(tmp_path: Path) -> None:
    found = both_nodes([tmp_path] * 2, own=(("--seed", "0"), ("--seed", "1")))
    assert [code for code, _ in found] == [2, 2], found
    assert "nodes disagree in config: train.seed" in found[0][1]["error"]["message"]


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
    folders = [tmp_path] * 2 if shared else own_folders(tmp_path)
    found = both_nodes(folders, firsts=("", FAULT.format(error=ERRORS[fault])))
    assert [code for code, _ in found] == [exit_code] * 2, found
    for folder, (_, said) in zip(folders, found, strict=True):
        (run,) = RunStore(folder).list()
        failure = run.record().failure
        assert failure is not None and (run.status, failure.kind) == (status, fault)
        assert "planted" in said["error"]["message"] and "planted" in failure.message


def test_a_lost_node_ends_the_other(tmp_path: Path) -> None:
    endless = ("--steps", "100000", "--set", "launch.timeout_s=20")
    lost = ("", at("launcher killed", "forward", rank=1, step=4))
    found = both_nodes(own_folders(tmp_path), *endless, firsts=lost)
    assert [code for code, _ in found] == [3, -signal.SIGKILL], found
    (survivor,) = RunStore(tmp_path / "0").list()
    assert survivor.status is Status.FAILED
    assert len(rows_of(survivor)) >= 4


def test_inside_torchrun(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran(
        "train", "--name", "inner", "--subset", "1000000", first=UNRENDERED, under=TORCHRUN, figures=True
    )
    assert ended.code == 0, ended.stderr
    printed, (run,) = ended.said, ended.runs
    assert printed["run"]["id"] == run.id and run.status is Status.COMPLETED and run.name == "inner"
    assert rows_of(run).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert printed["summary"]["world_size"] == run.config().launch.nproc == 2
    assert printed["figures"] and all(Path(figure).is_file() for figure in printed["figures"])
    assert len([warning for warning in run.record().warnings if "1000000 of" in warning]) == 1


def test_a_mistake_inside_torchrun_is_told_once(tmp_path: Path) -> None:
    command = Command(tmp_path)
    command.store.create("train", "static", name="taken")
    command.ran("train", "--name", "taken", under=TORCHRUN)
    assert command.error["kind"] == "run" and "bug in dynbench" not in command.stderr


ONE_NODE, TWO_NODES = (0, 1), (0, 0)
"""Local ranks."""


@pytest.mark.parametrize(("local_ranks", "slow_rank"), [(ONE_NODE, 0), (ONE_NODE, 1), (TWO_NODES, 1)])
def test_preparing_data_may_take_longer_than_a_collective(
    ranks: WarmRanks, tmp_path: Path, local_ranks: tuple[int, int], slow_rank: int
) -> None:
    assert ranks(prepared, str(tmp_path), local_ranks, slow_rank, "is slow") == ["data"] * 2


@pytest.mark.parametrize(("what", "said"), [("dies", "ended without a word"), ("fails", "OSError: planted")])
def test_nobody_waits_for_a_rank_that_is_gone(ranks: WarmRanks, tmp_path: Path, what: str, said: str) -> None:
    with pytest.raises(RankError) as ended:
        ranks(prepared, str(tmp_path), ONE_NODE, 0, what)
    assert said in ended.value.errors[0] and "onnection closed by peer" in ended.value.errors[1]

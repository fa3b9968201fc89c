"""Two launchers on loopback as two nodes; ranks that the user's torchrun starts; ranks that wait for one's data."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from multiproc.faults import TORCHRUN, Command
from multiproc.launches import TINY, rows_of, sets
from multiproc.preparing_rank import prepared
from pixel import UNRENDERED
from planted import at
from sampled import matrix
from warm import RankError, WarmRanks

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.selection import Selection
from dynbench.config.schema import Analysis
from dynbench.runs.run import Status

pytestmark = pytest.mark.multiproc

ONE_RANK = sets(*(setting for setting in TINY if not setting.startswith("launch.nproc")))


def both_nodes(
    folder: Path,
    *more: str,
    shared: bool = False,
    own: tuple[Sequence[str], Sequence[str]] = ((), ()),
    firsts: tuple[str, str] = ("", ""),
) -> tuple[Command, Command]:
    """Two launchers of a rank each have ended.

    Args:
        folder: where they are.
        more: words of both.
        shared: whether they have one results folder.
        own: words of each.
        firsts: statements that each runs first.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    one, two = Command(folder / "one"), Command(folder / "two")
    if shared:
        two.store = one.store
    given = ("train", "--nproc", "1", "--name", "both", "--nnodes", "2", "--rdzv-id", "t", *ONE_RANK, *more)
    for node, command in enumerate((one, two)):
        words = ("--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{port}", *own[node])
        command.begin(*given, *words, first=firsts[node], bare=True)
    return one.end(), two.end()


def codes(nodes: tuple[Command, Command]) -> list[int]:
    return [node.code for node in nodes]


def test_nodes_with_a_shared_folder_make_one_run(tmp_path: Path) -> None:
    one, two = nodes = both_nodes(tmp_path, shared=True)
    assert codes(nodes) == [0, 0], one.stderr + two.stderr
    (run,) = one.runs
    assert one.said["run"]["id"] == two.said["run"]["id"] == run.id and run.name == "both"
    assert rows_of(run).select("step", "rank").rows() == [(step, rank) for step in range(8) for rank in (0, 1)]
    assert sorted(log.name for log in run.logs_dir.iterdir()) == ["rank_0.log", "rank_1.log"]


def test_nodes_with_their_own_folders_keep_one_id(tmp_path: Path) -> None:
    one, two = nodes = both_nodes(tmp_path)
    assert codes(nodes) == [0, 0], one.stderr + two.stderr
    runs = [one.run, two.run]
    assert runs[0].id == runs[1].id == runs[0].record().id == runs[1].record().id
    assert {path.name for run in runs for path in run.ranks_dir.glob("rank_*.csv")} == {"rank_0.csv", "rank_1.csv"}
    report = analyze_runs(Selection(runs), one.store, Analysis())
    (merged,) = report.runs
    assert (merged.run.id, merged.ranks, merged.world_size, merged.partial) == (runs[0].id, (0, 1), 2, False)


def test_nodes_that_disagree_are_refused(tmp_path: Path) -> None:
    nodes = both_nodes(tmp_path, shared=True, own=(("--seed", "0"), ("--seed", "1")))
    assert codes(nodes) == [2, 2]
    assert "nodes disagree in config: train.seed" in nodes[0].error["message"]


@pytest.mark.parametrize(
    ("fault", "shared", "status", "exit_code", "said"),
    [
        matrix("without memory", True, Status.OOM, 4, "can't allocate memory"),
        ("without memory", False, Status.OOM, 4, "can't allocate memory"),
        ("fails", True, Status.FAILED, 3, "ValueError: planted"),
    ],
)
def test_what_ends_a_rank_of_the_second_node_is_told_on_both(
    tmp_path: Path, fault: str, shared: bool, status: Status, exit_code: int, said: str
) -> None:
    nodes = both_nodes(tmp_path, shared=shared, firsts=("", at(fault, "forward", rank=1, step=4)))
    assert codes(nodes) == [exit_code] * 2
    for node in nodes:
        (run,) = node.runs
        failure = run.record().failure
        assert failure is not None and run.status is status
        assert said in node.error["message"] and said in failure.message


def test_a_lost_node_ends_the_other(tmp_path: Path) -> None:
    lost = ("", at("launcher killed", "forward", rank=1, step=4))
    nodes = both_nodes(tmp_path, "--steps", "100000", *sets("launch.timeout_s=20"), firsts=lost)
    assert codes(nodes) == [3, -signal.SIGKILL]
    (survivor,) = nodes[0].runs
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

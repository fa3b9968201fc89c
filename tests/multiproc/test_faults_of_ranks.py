"""A rank is killed wherever it may be, hears no signal, hangs, or finds no memory: one line, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from multiproc.faults import (
    ENDLESS,
    IMPATIENT,
    PHASES,
    Command,
    check,
    check_rows,
    printed_by,
    recipe_of,
    settled,
)
from pixel import UNRENDERED
from planted import at

from dynbench.config.ranks import ranks_under
from dynbench.experiment.launch_plan import read_state
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

KILLED_IN_MAKE_TEST = [("start", 0), ("first step", 0), ("mid-run", 0)]
CASE = "measuring all_reduce 0.5 MiB float32 gloo x2"
CASE_SAID = f"while {CASE}"
TIMEOUT_S = 8


@pytest.mark.parametrize(
    ("phase", "rank"),
    [
        pytest.param(phase, rank, marks=() if (phase, rank) in KILLED_IN_MAKE_TEST else pytest.mark.matrix)
        for phase in PHASES
        for rank in (0, 1)
    ],
)
def test_a_rank_is_killed(tmp_path: Path, phase: str, rank: int) -> None:
    name, step, said, rows = PHASES[phase]
    planted = at("killed", name, rank=rank, step=step)
    ended = Command(tmp_path).ran("train", "--json", first=IMPATIENT + planted)
    killed = f"rank {rank} was killed by SIGKILL {said}"
    record = check(ended, 3, Status.FAILED, killed, rows=rows, rank=rank)
    assert ended.error["kind"] == "worker"
    assert record.failure is not None and record.failure.log == f"logs/rank_{rank}.log"


@pytest.mark.parametrize(
    ("sync", "rank"),
    [("ps", 0), *(pytest.param(name, -1, marks=pytest.mark.matrix) for name in STRATEGIES)],
)
def test_a_rank_is_killed_under_every_strategy(tmp_path: Path, sync: str, rank: int) -> None:
    """The first one, a server, or the last one, of two that train."""
    ranks = 2 + STRATEGIES[sync].servers
    rank %= ranks
    given = ("--set", f"launch.nproc={ranks}", "--set", f"sync.name={sync}")
    ended = Command(tmp_path).ran("train", "--json", *given, first=IMPATIENT + at("killed", "sync", rank=rank, step=4))
    check(ended, 3, Status.FAILED, f"{ranks_under(sync, ranks).title(rank)} was killed by SIGKILL", rows=3, rank=rank)
    summary = json.loads((ended.run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["workers"] == 2


def test_ranks_that_hear_no_signal(tmp_path: Path) -> None:
    command = Command(tmp_path)
    process = command.begin("train", "--json", *ENDLESS, first=IMPATIENT + "import planted; planted.deaf_ranks()")
    command.wait_for_rows()
    process.terminate()
    ended = command.end()
    check(ended, 143, Status.INTERRUPTED, "stopped by SIGTERM", rows=4)


@pytest.mark.parametrize("how", ["hangs", pytest.param("stopped", marks=pytest.mark.matrix)])
def test_a_rank_hangs(tmp_path: Path, how: str) -> None:
    patience = ("--set", f"launch.timeout_s={TIMEOUT_S}")
    ended = Command(tmp_path).ran("train", "--json", *patience, first=IMPATIENT + at(how, "forward", rank=1, step=4))
    said = f"rank 1 hung in forward of step 4: rank 0 waited in vain in sync of step 4 for {TIMEOUT_S} s"
    check(ended, 3, Status.FAILED, said, "(launch.timeout_s)", rows=4, rank=1)
    assert "raise launch.timeout_s" in ended.error["hint"]


def test_one_rank_without_memory(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", "--json", first=at("without memory", "forward", rank=1, step=4))
    check(ended, 4, Status.OOM, "rank 1: ", "can't allocate memory", rows=4, rank=1)
    assert "train.global_batch" in ended.error["hint"]


def test_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    """The run is whole, and says so at its end, as its analysis does."""
    ended = Command(tmp_path).ran("train", "--json", "--learning-rate", "1e30")
    record = check(ended, 0, Status.COMPLETED, rows=8)
    (said,) = [warning for warning in record.warnings if "not finite" in warning]
    assert "Lower the learning rate" in said and said in ended.stderr
    code, found = printed_by(ended.store.root, "analyze", ended.run.id, "--strict")
    assert code == 6 and "nan_loss" in found["error"]["message"]


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["killed", "hangs", "without memory"])
def test_a_rank_of_a_benchmark(tmp_path: Path, fault: str) -> None:
    """The case that was measured before is kept, and not measured again; without memory, a row says so."""
    command = Command(tmp_path)
    words = ("bench", "collectives", "--json", "--no-figures", "--set", f"timeout_s={TIMEOUT_S}")
    ended = command.ran(*words, first=IMPATIENT + at(fault, CASE, rank=1))
    before = json.loads(ended.stdout)["rows"]
    if fault == "without memory":
        settled(ended, ended.run, 0, Status.COMPLETED)
        assert [row["status"] for row in before] == ["ok", "oom"] and "can't allocate memory" in before[1]["reason"]
        return
    said = "was killed by SIGKILL" if fault == "killed" else "hung"
    settled(ended, ended.run, 3, Status.FAILED, f"rank 1 {said} {CASE_SAID}", rank=1)
    assert [row["status"] for row in before] == ["ok"]
    assert f"dynbench bench --resume {ended.run.id}" in ended.error["hint"]
    resumed = json.loads(command.ran("bench", "--resume", ended.run.id, "--json", "--no-figures", bare=True).stdout)
    settled(command, command.run, 0, Status.COMPLETED)
    assert resumed["rows"][:1] == before and [row["status"] for row in resumed["rows"]] == ["ok", "ok"]


@pytest.mark.matrix
def test_a_rank_is_killed_that_waits_for_a_program(tmp_path: Path) -> None:
    """By what stands for nsys, which would go on for long."""
    command, fake = Command(tmp_path), tmp_path / "bin" / "nsys"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nkill -9 $(cut -d " " -f 4 /proc/$PPID/stat)\nsleep 600\n')
    fake.chmod(0o755)
    chosen = ("sizes=tiny", "contexts=16", "precisions=fp32", "iterations=2", "warmup=1")
    ended = command.ran(
        "bench", "nsys", "--json", "--no-figures", *(word for each in chosen for word in ("--set", each)),
        bare=True, first=f"import os; os.environ['PATH'] = {str(fake.parent)!r} + ':' + os.environ['PATH']",
    )  # fmt: skip
    said = "rank 0 was killed by SIGKILL while measuring tiny, context 16, fp32"
    settled(ended, ended.run, 3, Status.FAILED, said, rank=0)


@pytest.mark.parametrize(
    "fault", [*(pytest.param(fault, marks=pytest.mark.matrix) for fault in ("killed", "hangs")), "without memory"]
)
def test_a_rank_of_a_comparison(tmp_path: Path, fault: str) -> None:
    command, patience = Command(tmp_path), ("--set", f"launch.timeout_s={TIMEOUT_S}")
    ended = command.ran(
        "compare", recipe_of(tmp_path), "--name", "demo", "--json", *patience,
        first=IMPATIENT + at(fault, "forward", rank=1, step=4),
    )  # fmt: skip
    said = {"killed": "rank 1 was killed by SIGKILL in forward of step 4", "hangs": "rank 1 hung in forward of step 4"}
    code, status = (4, Status.OOM) if fault == "without memory" else (3, Status.FAILED)
    comparison, *arms = ended.runs
    settled(ended, comparison, code, status, "arm ", said.get(fault, "can't allocate memory"), rank=1)
    assert "dynbench compare --resume demo" in ended.error["hint"]
    state = read_state(comparison.path)
    assert state.mode == "apart" and state.groups == (("static",), ("partition",)), "the next time by themselves"
    assert sorted(arm.status for arm in arms) == sorted([status, Status.INTERRUPTED])
    for arm in arms:
        check_rows(arm, 3)
        assert printed_by(ended.store.root, "analyze", arm.id)[0] == 0
    if fault == "killed":
        command.ran("compare", "--resume", "demo", "--json", bare=True, first=UNRENDERED)
        settled(command, comparison, 0, Status.COMPLETED)

"""A rank is killed wherever it may be, hears no signal, hangs, or finds no memory: one line, and nothing is left."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from multiproc.faults import (
    ENDLESS,
    IMPATIENT,
    PHASES,
    Command,
    analyzed,
    check,
    check_rows,
    printed_by,
    recipe_of,
    settled,
)
from multiproc.launches import sets
from pixel import UNRENDERED
from planted import at
from sampled import matrix, sampled

from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault]

CASE = "measuring all_reduce 0.5 MiB float32 gloo x2"
CASE_SAID = f"while {CASE}"
TIMEOUT_S = 8
PATIENCE = sets(f"launch.timeout_s={TIMEOUT_S}")


@pytest.mark.parametrize(
    ("phase", "rank"), sampled(product(PHASES, (0, 1)), [("start", 0), ("first step", 0), ("mid-run", 0)])
)
def test_a_rank_is_killed(tmp_path: Path, phase: str, rank: int) -> None:
    name, step, said, rows = PHASES[phase]
    planted = at("killed", name, rank=rank, step=step)
    ended = Command(tmp_path).ran("train", first=IMPATIENT + planted)
    killed = f"rank {rank} was killed by SIGKILL {said}"
    record = check(ended, 3, Status.FAILED, killed, rows=rows, rank=rank)
    assert ended.error["kind"] == "worker"
    assert record.failure is not None and record.failure.log == f"logs/rank_{rank}.log"
    if phase == "mid-run":
        analyzed(ended, draws=True)


def test_a_server_is_killed(tmp_path: Path) -> None:
    given = sets("launch.nproc=3", "sync.name=ps")
    ended = Command(tmp_path).ran("train", *given, first=IMPATIENT + at("killed", "sync", rank=0, step=4))
    check(ended, 3, Status.FAILED, "rank 0 (server) was killed by SIGKILL", rows=3, rank=0)
    summary = json.loads((ended.run.path / "summary.json").read_text())
    assert summary["partial"] is True and summary["workers"] == 2


def test_ranks_that_hear_no_signal(tmp_path: Path) -> None:
    command = Command(tmp_path)
    process = command.begin("train", *ENDLESS, first=IMPATIENT + "import planted; planted.deaf_ranks()")
    command.wait_for_rows()
    process.terminate()
    ended = command.end()
    check(ended, 143, Status.INTERRUPTED, "stopped by SIGTERM", rows=4)


HANGS = f"rank 1 hung in forward of step 4: rank 0 waited in vain in sync of step 4 for {TIMEOUT_S} s"
OF_HANGS = (3, Status.FAILED, (HANGS, "(launch.timeout_s)"), "raise launch.timeout_s")


@pytest.mark.parametrize(
    ("how", "code", "status", "says", "hint"),
    [
        ("hangs", *OF_HANGS),
        matrix("stopped", *OF_HANGS),
        ("without memory", 4, Status.OOM, ("rank 1: ", "can't allocate memory"), "train.global_batch"),
    ],
)
def test_a_rank_goes_no_further(
    tmp_path: Path, how: str, code: int, status: Status, says: tuple[str, ...], hint: str
) -> None:
    ended = Command(tmp_path).ran("train", *PATIENCE, first=IMPATIENT + at(how, "forward", rank=1, step=4))
    check(ended, code, status, *says, rows=4, rank=1)
    assert hint in ended.error["hint"]


def test_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    """The run is whole, and says so at its end, as its analysis does."""
    ended = Command(tmp_path).ran("train", "--learning-rate", "1e30")
    record = check(ended, 0, Status.COMPLETED, rows=8)
    (said,) = [warning for warning in record.warnings if "not finite" in warning]
    assert "Lower the learning rate" in said and said in ended.stderr
    code, found = printed_by(ended.store.root, "analyze", ended.run.id, "--strict")
    assert code == 6 and "nan_loss" in found["error"]["message"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("fault", "rank", "code", "says"),
    [
        ("killed", 1, 3, f"rank 1 was killed by SIGKILL {CASE_SAID}"),
        ("hangs", 1, 3, f"rank 1 hung {CASE_SAID}"),
        ("disk full", 0, 2, "rows.jsonl: File too large"),
    ],
)
def test_a_rank_of_a_benchmark(tmp_path: Path, fault: str, rank: int, code: int, says: str) -> None:
    """The case that was measured before is kept, and not measured again."""
    command = Command(tmp_path)
    words = ("bench", "collectives", "--no-figures", "--set", f"timeout_s={TIMEOUT_S}")
    ended = command.ran(*words, first=IMPATIENT + at(fault, CASE, rank=rank))
    settled(ended, ended.run, code, Status.FAILED, f"rank {rank}", says, rank=rank)
    before = ended.said["rows"]
    assert [row["status"] for row in before] == ["ok"]
    assert f"dynbench bench --resume {ended.run.id}" in ended.error["hint"]
    command.ran("bench", "--resume", ended.run.id, "--no-figures")
    settled(command, command.run, 0, Status.COMPLETED)
    after = command.said["rows"]
    assert after[:1] == before and [row["status"] for row in after] == ["ok", "ok"]


@pytest.mark.matrix
def test_a_rank_of_a_benchmark_without_memory(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("bench", "collectives", "--no-figures", first=at("without memory", CASE, rank=1))
    settled(ended, ended.run, 0, Status.COMPLETED)
    rows = ended.said["rows"]
    assert [row["status"] for row in rows] == ["ok", "oom"] and "can't allocate memory" in rows[1]["reason"]


@pytest.mark.matrix
def test_a_rank_is_killed_that_waits_for_a_program(tmp_path: Path) -> None:
    """By what stands for nsys, which would go on for long."""
    command, fake = Command(tmp_path), tmp_path / "bin" / "nsys"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nkill -9 $(cut -d " " -f 4 /proc/$PPID/stat)\nsleep 600\n')
    fake.chmod(0o755)
    chosen = sets("sizes=tiny", "contexts=16", "precisions=fp32", "iterations=2", "warmup=1")
    path = f"import os; os.environ['PATH'] = {str(fake.parent)!r} + ':' + os.environ['PATH']"
    ended = command.ran("bench", "nsys", "--no-figures", *chosen, bare=True, first=path)
    said = "rank 0 was killed by SIGKILL while measuring tiny, context 16, fp32"
    settled(ended, ended.run, 3, Status.FAILED, said, rank=0)


APART, TOGETHER = (("static",), ("partition",)), (("static", "partition"),)


@pytest.mark.parametrize(
    ("fault", "phase", "code", "status", "says", "groups"),
    [
        matrix("killed", "forward", 3, Status.FAILED, "rank 1 was killed by SIGKILL in forward of step 4", APART),
        matrix("hangs", "forward", 3, Status.FAILED, "rank 1 hung in forward of step 4", APART),
        ("without memory", "forward", 4, Status.OOM, "can't allocate memory", APART),
        matrix("disk full", "plan", 2, Status.FAILED, "rank_1.csv: File too large", TOGETHER),
    ],
)
def test_a_rank_of_a_comparison(
    tmp_path: Path, fault: str, phase: str, code: int, status: Status, says: str, groups: tuple[tuple[str, ...], ...]
) -> None:
    """Where an arm is to blame, the arms run by themselves when the comparison goes on."""
    command, planted = Command(tmp_path), at(fault, phase, rank=1, step=4)
    ended = command.ran("compare", recipe_of(tmp_path), "--name", "demo", *PATIENCE, first=IMPATIENT + planted)
    comparison, *arms = ended.runs
    settled(ended, comparison, code, status, "arm ", says, rank=1)
    assert "dynbench compare --resume demo" in ended.error["hint"]
    assert groups is APART or "start anew" not in ended.error["hint"]
    state = read_state(comparison.path)
    assert state.groups == groups and (state.mode == "apart" or groups is TOGETHER)
    assert sorted(arm.status for arm in arms) == sorted([status, Status.INTERRUPTED])
    for arm in arms:
        check_rows(arm, 3)
        assert printed_by(ended.store.root, "analyze", arm.id)[0] == 0
    if fault == "killed":
        command.ran("compare", "--resume", "demo", first=UNRENDERED)
        settled(command, comparison, 0, Status.COMPLETED)

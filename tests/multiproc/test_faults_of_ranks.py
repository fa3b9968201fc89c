"""A rank is killed wherever it may be, hears no signal, hangs, or finds no memory: one line, and nothing is left."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from multiproc.faults import ENDLESS, TWO_ARMS, Command, Saw, answered, check, worded
from multiproc.launches import wait_until
from planted import at, in_folder

from dynbench.engine.whereabouts import MEETING, PREPARING, last_seen
from dynbench.runs.run import Run
from dynbench.runs.status import Status

pytestmark = pytest.mark.multiproc

PHASES = {
    "start": (at("killed", MEETING), "while meeting the other ranks", None),
    "data": (at("killed", PREPARING), "while preparing its data", None),
    "plan": (at("killed", "plan", step=0), "in plan of step 0", None),
    "first step": (at("killed", "forward", step=0), "in forward of step 0", None),
    "mid-run": (at("killed", "backward", step=4), "in backward of step 4", 3),
}
MERGE = "import planted, dynbench.experiment.training as t; planted.plant_in_launcher('killed', t, '_finished')"
IMPATIENT = "import planted; planted.impatient_launcher(); "
CASE = "measuring all_reduce 0.5 MiB float32 gloo x2"
TIMEOUT_S = 8


@pytest.mark.parametrize("phase", PHASES)
def test_rank_0_is_killed(tmp_path: Path, saw: Saw, phase: str) -> None:
    first, said, rows = PHASES[phase]
    ended = Command(tmp_path).ran("train", "--json", first=IMPATIENT + first)
    record = check(ended, 3, Status.FAILED, f"rank 0 was killed by SIGKILL {said}", rows=rows, rank=0)
    assert record.failure is not None and record.failure.log == "logs/rank_0.log"
    saw(worded(ended))


def test_the_launcher_is_killed_while_it_merges(tmp_path: Path, saw: Saw) -> None:
    ended = Command(tmp_path).ran("train", "--json", first=MERGE)
    check(ended, -9, Status.COMPLETED, rows=8)
    assert not list(ended.run.ranks_dir.glob("at_*")), "every rank came to its end"
    saw(worded(ended))


def test_ranks_that_hear_no_signal(tmp_path: Path, saw: Saw) -> None:
    command = Command(tmp_path)
    process = command.begin("train", "--json", *ENDLESS, first="import planted; planted.deaf_ranks()")
    command.wait_for_rows()
    process.terminate()
    ended = command.end()
    check(ended, 143, Status.INTERRUPTED, "stopped by SIGTERM", rows=4)
    saw(worded(ended))


@pytest.mark.parametrize("how", ["hangs", pytest.param("stopped", marks=pytest.mark.matrix)])
def test_a_rank_hangs(tmp_path: Path, saw: Saw, how: str) -> None:
    patience = ("--set", f"launch.timeout_s={TIMEOUT_S}")
    ended = Command(tmp_path).ran("train", "--json", *patience, first=IMPATIENT + at(how, "forward", rank=1, step=4))
    said = f"rank 1 hung in forward of step 4: rank 0 waited in vain in sync of step 4 for {TIMEOUT_S} s"
    check(ended, 3, Status.FAILED, said, "(launch.timeout_s)", rows=4, rank=1)
    assert "raise launch.timeout_s" in ended.error["hint"]
    saw(worded(ended))


def test_one_rank_without_memory(tmp_path: Path, saw: Saw) -> None:
    ended = Command(tmp_path).ran("train", "--json", first=at("without memory", "forward", rank=1, step=4))
    check(ended, 4, Status.OOM, "rank 1: ", "can't allocate memory", rows=4, rank=1)
    assert "train.global_batch" in ended.error["hint"]
    saw(worded(ended))


def test_a_loss_that_is_not_a_number(tmp_path: Path, saw: Saw) -> None:
    """The run is whole, and says so at its end, as its analysis does."""
    ended = Command(tmp_path).ran("train", "--json", "--learning-rate", "1e30")
    record = check(ended, 0, Status.COMPLETED, rows=8)
    (said,) = [warning for warning in record.warnings if "not finite" in warning]
    assert "Lower the learning rate" in said and said in ended.stderr
    code, found = answered(ended.store.root, "analyze", ended.run.id, "--strict")
    assert code == 6 and "nan_loss" in found["error"]["message"]
    saw(f"{worded(ended)}, with a warning; analyze --strict: exit 6, {found['error']['message']}")


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["killed", "hangs", "without memory"])
def test_a_rank_of_a_benchmark(tmp_path: Path, saw: Saw, fault: str) -> None:
    """The case that was measured before is kept; one that finds no memory is a row that says so."""
    words = ("bench", "collectives", "--json", "--set", f"timeout_s={TIMEOUT_S}")
    ended = Command(tmp_path).ran(*words, first=IMPATIENT + at(fault, CASE, rank=1))
    statuses = [row["status"] for row in json.loads(ended.stdout)["rows"]]
    if fault == "without memory":
        assert (ended.code, ended.run.status, statuses) == (0, Status.COMPLETED, ["ok", "oom"]), ended.stderr
    else:
        said = "was killed by SIGKILL" if fault == "killed" else "hung"
        assert (ended.code, ended.run.status, statuses) == (3, Status.FAILED, ["ok"]), ended.stderr
        assert f"rank 1 {said} while {CASE}" in ended.error["message"] and "rank_1.log" in ended.error["message"]
    saw(worded(ended))


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["killed", "hangs", "without memory"])
def test_a_rank_of_a_comparison(tmp_path: Path, saw: Saw, fault: str) -> None:
    recipe = tmp_path / "two.yaml"
    recipe.write_text(TWO_ARMS + "launches: 2\n", encoding="utf-8")
    command, patience = Command(tmp_path), ("--set", f"launch.timeout_s={TIMEOUT_S}")
    ended = command.ran(
        "compare", str(recipe), "--name", "demo", "--json", *patience,
        first=IMPATIENT + at(fault, "forward", rank=1, step=4),
    )  # fmt: skip
    said = {"killed": "rank 1 was killed by SIGKILL in forward of step 4", "hangs": "rank 1 hung in forward of step 4"}
    assert ended.code == (4 if fault == "without memory" else 3), ended.stderr
    assert said.get(fault, "can't allocate memory") in ended.error["message"]
    assert "dynbench compare --resume demo" in ended.error["hint"]
    comparison = ended.runs[0]
    assert comparison.status is (Status.OOM if fault == "without memory" else Status.FAILED)
    code, listed = answered(ended.store.root, "runs", "ls")
    assert code == 0 and len(listed["runs"]) == 3
    saw(worded(ended))


WORKING = {
    "probe": ("probe",),
    "bench": ("bench", "collectives"),
    "compare": ("compare",),
}


def _at_work(run: Run) -> bool:
    place = last_seen(run, 1)
    return place is not None and (place.step is not None or place.phase.startswith("measuring"))


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["SIGINT", "SIGINT twice", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", WORKING)
def test_the_launcher_is_told_to_stop(tmp_path: Path, saw: Saw, name: str, how: str) -> None:
    endless = ("--set", "iterations=1000000") if name == "bench" else ENDLESS
    command = Command(tmp_path)
    process = command.begin(*WORKING[name], "--json", *endless)
    signum = signal.Signals[how.partition(" ")[0]]
    wait_until(lambda: [run.status for run in command.runs[:1]] == [Status.RUNNING], "the run to begin")
    wait_until(lambda: len(in_folder(command.work)) >= 4, "its processes")
    if name != "probe":
        wait_until(lambda: any(map(_at_work, command.runs)), "a rank at its work")
    process.send_signal(signum)
    if how.endswith("twice"):
        time.sleep(0.01)  # two signals that are pending at once are one
        process.send_signal(signum)
    ended = command.end()
    first = ended.runs[0]
    if signum is signal.SIGKILL:
        assert ended.code == -signum and first.status is Status.LOST
    else:
        assert (ended.code, first.status) == (128 + signum, Status.INTERRUPTED), ended.stderr
        assert ended.error["kind"] == "interrupted" and "Traceback" not in ended.stderr
    code, listed = answered(ended.store.root, "runs", "ls")
    assert code == 0 and len(listed["runs"]) == len(ended.runs)
    saw(worded(ended))

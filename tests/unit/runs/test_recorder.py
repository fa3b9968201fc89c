"""Whatever ends a run, its record says so; and every command that makes one ends alike: exit code, and folder named."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from dynbench.bench import bench_run
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.engine.launching import run_launch
from dynbench.errors import (
    BatchTooLarge,
    BugError,
    DynbenchError,
    Interrupted,
    NothingFits,
    Terminated,
    UsageError,
    WorkerFailed,
)
from dynbench.experiment import compare, solve_run
from dynbench.probe import prober
from dynbench.runs import recorder
from dynbench.runs.recorder import made, named, new_run, recorded
from dynbench.runs.run import Run, Status, refuse_running, start_mark
from dynbench.runs.store import RunStore
from dynbench.signals import STOPPING, handle, handled


def test_a_signal_before_results_are_written_says_so(run: Run) -> None:
    signals = {"begins anew": Terminated(signal.SIGTERM), "Go on.": Interrupted("stopped", "Go on.", signum=15)}
    for hint, error in (signals | {"": UsageError("no")}).items():
        with pytest.raises(DynbenchError) as caught, recorded(run, at_its_end=True):
            raise error
        assert hint in caught.value.hint and bool(hint) == bool(caught.value.hint)


def test_the_making_of_a_run_and_what_ends_it_are_recorded(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, full_disk: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(store, "solve", "solve", load_config(), decisions={}, data={"a": 1}, warnings=["look"])
    assert run.record().warnings == ["look"] and "look" in caplog.text
    assert run.config() == load_config() and run.env()["data"] == {"a": 1}
    monkeypatch.setattr(recorder, "write_text", Mock(side_effect=full_disk))
    with pytest.raises(DynbenchError):
        new_run(store, "probe", "probe", load_config(), decisions={}, data={})
    with pytest.raises(BugError) as caught, made(store, "compare", "demo"):
        raise ZeroDivisionError
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    ends = [(run.status, run.record().exit_code) for run in store.list()[1:]]
    assert ends == [(Status.FAILED, 2), (Status.FAILED, 1)]


@pytest.mark.parametrize(("place", "within"), [("logs/rank_1.err", "logs/rank_1.err"), ("../elsewhere.err", None)])
def test_warnings_and_a_log_of_the_folder_are_recorded_at_a_bad_end(run: Run, place: str, within: str | None) -> None:
    run.update(warnings=["before"])
    with pytest.raises(WorkerFailed), recorded(run) as recording:
        recording.warnings.append("on the way")
        raise WorkerFailed("no", rank=1, log=(run.path / place).resolve())
    failure = run.record().failure
    assert failure is not None and (failure.rank, failure.log) == (1, within)
    with recorded(run):
        pass
    record = run.record()
    assert (run.status, record.exit_code, record.failure) == (Status.COMPLETED, 0, None)
    assert record.warnings == ["before", "on the way"]


def test_the_end_of_another_nodes_run_is_left_to_it_and_the_innermost_run_is_named(store: RunStore) -> None:
    outer, ours, theirs = (store.create(command, "static") for command in ("compare", "train", "train"))
    with pytest.raises(WorkerFailed) as caught, recorded(outer), recorded(ours) as recording:
        recording.run, recording.ours = theirs, False
        raise WorkerFailed("a rank there")
    assert caught.value.run_path == theirs.path
    assert [run.status for run in (outer, theirs)] == [Status.FAILED, Status.CREATED]
    with pytest.raises(Interrupted) as stopped, named(theirs):  # after its end
        raise KeyboardInterrupt
    assert stopped.value.run_path == theirs.path


def test_a_run_that_another_process_or_host_began_is_left_to_it_until_it_ends(run: Run) -> None:
    refuse_running(run)
    run.update(status=Status.RUNNING)
    run.update(pid=(parent := os.getppid()), pid_start=start_mark(parent))
    before = run.record()
    with pytest.raises(UsageError, match=f"is running in process {parent}"), recorded(run):
        raise AssertionError("it began")
    assert run.record() == before
    run.update(host="elsewhere", pid=77)
    with pytest.raises(UsageError, match="mine: is running in process 77 on elsewhere"):
        refuse_running(run)
    run.update(status=Status.FAILED)
    refuse_running(run)


@pytest.mark.parametrize("signum", STOPPING)
def test_a_signal_stops_it_and_a_second_one_waits_for_the_record(
    run: Run, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    update, ended = Run.update, []

    def impatient(run: Run, **changes: object) -> object:
        if "exit_code" in changes:
            signal.raise_signal(signal.SIGINT)
            ended.append(changes["exit_code"])
        return update(run, **changes)

    monkeypatch.setattr(Run, "update", impatient)
    before = [signal.getsignal(each) for each in STOPPING]
    with pytest.raises(Interrupted), recorded(run):
        signal.raise_signal(signum)
        pytest.fail("went on")
    assert ended == [128 + signum] and run.status is Status.INTERRUPTED
    assert [signal.getsignal(each) for each in STOPPING] == before


def test_handlers_of_others_are_left_alone(run: Run) -> None:
    seen: list[int] = []
    with handled(lambda signum, _: seen.append(signum)), recorded(run):
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handled(lambda *_: pytest.fail("nohup is handled")):
        signal.raise_signal(signal.SIGHUP)
        handle(lambda *_: pytest.fail("nohup is handled"), (signal.SIGHUP,))
        signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)


def test_an_end_that_cannot_be_written_hides_no_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full_disk: OSError
) -> None:
    with pytest.raises(WorkerFailed, match="rank 1"), recorded(run):
        monkeypatch.setattr(Run, "update", Mock(side_effect=full_disk))
        raise WorkerFailed("rank 1 died")
    assert str(run.path) in caplog.text


def test_nobody_reading_on_interrupts_it(run: Run) -> None:
    with pytest.raises(Interrupted), recorded(run):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert (run.status, run.record().exit_code) == (Status.INTERRUPTED, 141)


def test_what_another_arm_ended_is_interrupted_and_says_by_which(run: Run) -> None:
    with pytest.raises(WorkerFailed), recorded(run) as recording:
        recording.ended_by = "arm b failed"
        raise WorkerFailed("rank 1 died", rank=1)
    found = run.record().as_dict()
    assert (found["status"], found["exit_code"]) == (Status.INTERRUPTED, 3)
    assert found["failure"] == {"kind": "interrupted", "message": "arm b failed", "rank": None, "log": None}


WORK: dict[str, tuple[list[str], object, str]] = {
    "train": (["train", "--device", "cpu", "--nproc", "2"], run_launch, "launch_ranks"),
    "probe": (["probe", "--device", "cpu", "--nproc", "2"], prober, "probe"),
    "solve": (["solve", "lognormal", "--steps", "2", "--world-size", "2", "--policy", "static"], solve_run, "_write"),
    "bench": (["bench", "collectives", "--set", "backend=gloo"], bench_run, "launch_ranks"),
    "compare": (["compare", "--device", "cpu", "--nproc", "2"], compare, "run_launches"),
}
"""Per command: its arguments, and what does its work once the run is made."""
ENDINGS: dict[str, tuple[Callable[[], BaseException], str, int, str]] = {
    "usage": (lambda: UsageError("no", "Do this."), "failed", 2, "usage"),
    "worker": (lambda: WorkerFailed("rank 1 died", rank=1), "failed", 3, "worker"),
    "memory": (lambda: NothingFits("too much"), "oom", 4, "memory"),
    "batch": (lambda: BatchTooLarge("a plan uses up nobody's memory"), "failed", 4, "memory"),
    "ctrl-c": (KeyboardInterrupt, "interrupted", 130, "interrupted"),
    "terminated": (lambda: Terminated(signal.SIGTERM), "interrupted", 143, "interrupted"),
    "hung up": (lambda: SystemExit(128 + signal.SIGHUP), "interrupted", 129, "interrupted"),
    "disk": (lambda: OSError(errno.ENOSPC, "No space left on device", "x.csv"), "failed", 2, "storage"),
    "a library's disk": (lambda: OSError("said: No space left on device (os error 28)"), "failed", 2, "storage"),
    "no file": (lambda: OSError(errno.ENOENT, "no such file"), "failed", 1, "bug"),
    "strange exit": (lambda: SystemExit("strange"), "failed", 1, "bug"),
    "bug": (lambda: ZeroDivisionError("division by zero"), "failed", 1, "bug"),
}
MISTAKES = {
    "train": [["--policy", "partitio"], ["--global-batch", "1"]],
    "probe": [["--set", "launch.nnodes=2"], ["--lengths", "4096"]],
    "solve": [["--policy", "static", "--world-size", "2,4", "--global-batch", "6"], ["--policy", "statc"]],
    "bench": [["--set", "processes=1"], ["--set", "dtype=float7"]],
    "compare": [["--global-batch", "1"], ["--launches", "3", "--launch-mode", "apart"]],
}
"""Per command, options with which it cannot work; those of solve fail at the last of several sizes."""


@pytest.fixture(autouse=True)
def _at_the_registry(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def plant(monkeypatch: pytest.MonkeyPatch, command: str, error: BaseException | None) -> list[str]:
    arguments, owner, work = WORK[command]

    monkeypatch.setattr(owner, work, Mock(side_effect=error or AssertionError("it went to work")))
    return arguments


Output = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", WORK)
def test_every_end_of_every_command(
    command: str, ending: str, store: RunStore, monkeypatch: Patch, capsys: Output
) -> None:
    make_error, status, exit_code, kind = ENDINGS[ending]
    assert main([*plant(monkeypatch, command, make_error()), "--json"]) == exit_code
    said = capsys.readouterr()
    (run,) = store.list()
    record = run.record()
    assert record.failure is not None
    assert (record.status, record.exit_code, record.failure.kind) == (status, exit_code, kind)
    assert f"run: {run.path}" in said.err.splitlines()
    shown = json.loads(said.out)
    assert (shown["run"]["id"], shown["run"]["path"]) == (run.id, str(run.path))
    assert (shown["error"]["kind"], shown["error"]["exit_code"]) == (kind, exit_code)
    assert record.failure.message == shown["error"]["message"]


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_in_the_options_leaves_no_entry(
    command: str, store: RunStore, monkeypatch: Patch, capsys: Output
) -> None:
    arguments = plant(monkeypatch, command, None)
    for mistake in MISTAKES[command]:
        assert main([*arguments, *mistake]) == 2, mistake
        assert capsys.readouterr().err.startswith("error: ")
        assert store.list() == [], mistake

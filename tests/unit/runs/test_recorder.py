"""Whatever ends a run, its record says so."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from dynbench.config.layers import load_config
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
from dynbench.runs import recorder
from dynbench.runs.recorder import made, named, new_run, recorded
from dynbench.runs.run import Run, Status, refuse_running, start_mark
from dynbench.runs.store import RunStore
from dynbench.signals import STOPPING, handle, handled

ENDINGS = [
    (WorkerFailed("rank 1 died"), Status.FAILED, 3, "worker"),
    (NothingFits("too much"), Status.OOM, 4, "memory"),
    (BatchTooLarge("a plan uses up nobody's memory"), Status.FAILED, 4, "memory"),
    (KeyboardInterrupt(), Status.INTERRUPTED, 130, "interrupted"),
    (Terminated(signal.SIGTERM), Status.INTERRUPTED, 143, "interrupted"),
    (OSError(errno.ENOSPC, "No space left on device"), Status.FAILED, 2, "storage"),
    (OSError(errno.ENOENT, "no such file"), Status.FAILED, 1, "bug"),
    (OSError("the library says: No space left on device (os error 28)"), Status.FAILED, 2, "storage"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), Status.INTERRUPTED, 141, "interrupted"),
    (SystemExit(128 + signal.SIGHUP), Status.INTERRUPTED, 129, "interrupted"),
    (SystemExit("strange"), Status.FAILED, 1, "bug"),
]


@pytest.mark.parametrize(("error", "status", "exit_code", "kind"), ENDINGS, ids=lambda value: type(value).__name__)
def test_the_record_says_how_it_ended(
    run: Run, error: BaseException, status: Status, exit_code: int, kind: str
) -> None:
    with pytest.raises(DynbenchError) as caught, recorded(run):
        assert run.status is Status.RUNNING
        raise error
    assert error in (caught.value, caught.value.__cause__)
    assert (caught.value.kind, caught.value.exit_code, caught.value.run_path) == (kind, exit_code, run.path)
    record = run.record()
    assert record.failure is not None
    assert (record.status, record.exit_code, record.failure.kind) == (status, exit_code, kind)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Terminated(signal.SIGTERM), "begins anew"),
        (Interrupted("stopped", "Go on.", signum=15), "Go on."),
        (UsageError("no"), ""),
    ],
    ids=["signal", "with a hint", "mistake"],
)
def test_a_signal_before_results_are_written_says_so(run: Run, error: DynbenchError, hint: str) -> None:
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
    with pytest.raises(BugError), made(store, "compare", "demo"):
        raise ZeroDivisionError
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
    assert run.record().warnings == ["before", "on the way"]
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


@pytest.fixture
def hangup() -> Iterator[None]:
    """What SIGHUP does, restored afterwards: nobody ignores it, as the tests themselves may under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
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
    with recorded(run):
        pass
    assert run.status is Status.COMPLETED


@pytest.mark.usefixtures("hangup")
def test_handlers_of_others_are_left_alone(run: Run) -> None:
    seen: list[int] = []
    with handled(lambda signum, _: seen.append(signum)), recorded(run):
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handled(lambda *_: pytest.fail("nohup is handled")):
        signal.raise_signal(signal.SIGHUP)
        handle(lambda *_: pytest.fail("nohup is handled"), (signal.SIGHUP,))
        signal.raise_signal(signal.SIGHUP)


def test_an_end_that_cannot_be_written_hides_no_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full_disk: OSError
) -> None:
    with pytest.raises(WorkerFailed, match="rank 1"), recorded(run):
        monkeypatch.setattr(Run, "update", Mock(side_effect=full_disk))
        raise WorkerFailed("rank 1 died")
    assert str(run.path) in caplog.text


def test_what_another_arm_ended_is_interrupted_and_says_by_which(run: Run) -> None:
    with pytest.raises(WorkerFailed), recorded(run) as recording:
        recording.ended_by = "arm b failed"
        raise WorkerFailed("rank 1 died", rank=1)
    record = run.record()
    assert (record.status, record.exit_code) == (Status.INTERRUPTED, 3)
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message, record.failure.rank) == ("interrupted", "arm b failed", None)

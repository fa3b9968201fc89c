"""Whatever ends a run, its record says so."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest

from dynbench.errors import Interrupted, NothingFits, Terminated, UsageError, WorkerFailed
from dynbench.runs.ending import record_ending
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

ENDINGS = [
    (WorkerFailed("rank 1 died"), Status.FAILED, 3, "worker"),
    (UsageError("no"), Status.FAILED, 2, "usage"),
    (NothingFits("too much"), Status.OOM, 4, "memory"),
    (Interrupted("stopped", signum=15), Status.INTERRUPTED, 143, "interrupted"),
    (KeyboardInterrupt(), Status.INTERRUPTED, 130, "interrupted"),
    (Terminated(signal.SIGTERM), Status.INTERRUPTED, 143, "interrupted"),
    (OSError(errno.ENOSPC, "No space left on device"), Status.FAILED, 2, "storage"),
    (OSError(errno.ENOENT, "no such file"), Status.FAILED, 1, "bug"),
    (ZeroDivisionError("division by zero"), Status.FAILED, 1, "bug"),
    (RuntimeError("gloo"), Status.FAILED, 1, "bug"),
    (SystemExit("strange"), Status.FAILED, 1, "bug"),
]


@pytest.mark.parametrize(("error", "status", "exit_code", "kind"), ENDINGS, ids=lambda value: type(value).__name__)
def test_the_record_says_how_it_ended(
    tmp_path: Path, error: BaseException, status: Status, exit_code: int, kind: str
) -> None:
    run = RunStore(tmp_path).create("probe", "probe")
    with pytest.raises(type(error)) as caught, record_ending(run):
        assert run.status is Status.RUNNING
        raise error
    assert caught.value is error
    record = run.record()
    assert record.failure is not None
    assert (record.status, record.exit_code, record.failure.kind) == (status, exit_code, kind)


def test_what_ran_to_its_end_is_completed(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("probe", "probe")
    with record_ending(run):
        pass
    assert (run.status, run.record().exit_code, run.record().failure) == (Status.COMPLETED, 0, None)

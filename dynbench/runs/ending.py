"""How a run ended, written into its record whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dynbench.errors import (
    EXIT_BUG,
    EXIT_OK,
    EXIT_USAGE,
    STORAGE_ERRORS,
    DynbenchError,
    Interrupted,
    NothingFits,
    interruption,
)
from dynbench.runs.run import Run
from dynbench.runs.run_record import Failure
from dynbench.runs.status import Status


@contextmanager
def record_ending(run: Run) -> Iterator[None]:
    """The run's record says that this process works on it, and how that ended; whatever ends it goes on."""
    run.update(status=Status.RUNNING)
    try:
        yield
    except BaseException as error:
        run.update(**ending(error))
        raise
    run.update(status=Status.COMPLETED, exit_code=EXIT_OK, failure=None)


def ending(error: BaseException) -> dict[str, object]:
    """The fields of the record of a run that an error ended."""
    status, exit_code, failure = _classified(error)
    return {"status": status, "exit_code": exit_code, "failure": failure}


def is_storage_error(error: BaseException) -> bool:
    """Whether an error says something about a disk or its permissions, not about dynbench."""
    return isinstance(error, OSError) and error.errno in STORAGE_ERRORS


def _classified(error: BaseException) -> tuple[Status, int, Failure]:
    if isinstance(error, DynbenchError):
        status = Status.FAILED
        if isinstance(error, Interrupted | NothingFits):
            status = Status.INTERRUPTED if isinstance(error, Interrupted) else Status.OOM
        return status, error.exit_code, Failure(error.kind, error.message)
    if isinstance(error, KeyboardInterrupt):
        stopped = interruption(error)
        return Status.INTERRUPTED, stopped.exit_code, Failure(stopped.kind, stopped.message)
    kind, exit_code = ("storage", EXIT_USAGE) if is_storage_error(error) else ("bug", EXIT_BUG)
    return Status.FAILED, exit_code, Failure(kind, f"{type(error).__name__}: {error}")

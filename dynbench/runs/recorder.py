"""A run from its making to its end: whatever ends it, its record says how, and what is raised names its folder.

Every command that makes a run makes it with `new_run` and works on it within `recorded`:

    ending                                  status       exit code
    to its end                              completed    0
    Ctrl-C, SIGTERM, SIGHUP                 interrupted  128 + the signal; a second one waits for the record
    out of memory, not one sample fits      oom          4
    a batch beyond the capacities           failed       4
    a rank failed                           failed       3
    a mistake of the user's, a full disk    failed       2
    anything else, which is a bug           failed       1
    the process was killed                  lost, as `running` without its process shows
    another arm ended the launch            interrupted  of that arm
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Unpack

from dynbench.config.schema import Config, dump_config
from dynbench.errors import (
    EXIT_OK,
    BatchTooLarge,
    DynbenchError,
    Interrupted,
    NothingFits,
    RecordError,
    UsageError,
    WorkerFailed,
    user_error,
)
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.provenance import collect
from dynbench.runs.run import Failure, Run, Status
from dynbench.runs.store import Naming, RunStore
from dynbench.signals import handled, terminate

_log = logging.getLogger(__name__)


@dataclass
class Recording:
    """A run whose end will be recorded."""

    run: Run
    """It may become another while it is worked on: of several nodes, the folder that they settled on."""
    ours: bool = True
    """Whether its end is recorded here; False where another node's launcher does it."""
    warnings: list[str] = field(default_factory=list)
    """What the record is to say beside the warnings that it has, at whatever end."""
    at_its_end: bool = False
    """Whether its results are written when it ends, so that a signal before that leaves none."""
    ended_by: str | None = None
    """Where another arm of its launch ended it: what is to be said of that."""


@contextmanager
def made(store: RunStore, command: str, slug: str, **naming: Unpack[Naming]) -> Iterator[Run]:
    """A new run whose files are written inside; where that fails, its record says so.

    Raises:
        RunLookupError: the name is not allowed or in use.
        UsageError: the results folder cannot be written.
    """
    run = store.create(command, slug, **naming)
    with _bad_end_recorded(Recording(run)):
        yield run


def new_run(
    store: RunStore,
    command: str,
    slug: str,
    config: Config,
    *,
    decisions: Mapping[str, Mapping[str, object]],
    data: Mapping[str, object],
    warnings: Sequence[str] = (),
    **naming: Unpack[Naming],
) -> Run:
    """A new run with its configuration, provenance and warnings, which are said too.

    Args:
        store: registry that it is put into.
        command: the subcommand that makes it.
        slug: what its id says about it.
        config: its settings, without `auto`.
        decisions: what was decided for what was `auto`, and why.
        data: what is known of its data.
        warnings: what is warned of before it runs.
        naming: what it is called.

    Raises:
        RunLookupError, UsageError: as `made`.
    """
    with made(store, command, slug, **naming) as run:
        write_text(run.config_file, dump_config(config))
        write_json(run.env_file, collect(config, decisions, data))
        for warning in warnings:
            _log.warning("%s", warning)
        run.update(warnings=list(warnings))
    return run


@contextmanager
def recorded(run: Run, *, at_its_end: bool = False) -> Iterator[Recording]:
    """This process works on the run, and its record says how that ended.

    Args:
        run: what is worked on.
        at_its_end: its results are written when it ends; a signal before that leaves none, as is said then.

    Raises:
        UsageError: another process works on it.
        DynbenchError: what ended it, with the run's folder where it names no other; a signal is an `Interrupted`, a
            full disk a `StorageError`, and what is no error of the user's a `BugError` with that as its cause.
    """
    recording = Recording(run, at_its_end=at_its_end)
    with handled(terminate, where_unhandled=True), _bad_end_recorded(recording):
        try:
            run.update(status=Status.RUNNING)
        except UsageError:  # another process has begun meanwhile, and records how it ends
            recording.ours = False
            raise
        yield recording
        with handled(signal.SIG_IGN):
            _record(recording, status=Status.COMPLETED, exit_code=EXIT_OK, failure=None)


@contextmanager
def named(run: Run) -> Iterator[None]:
    """What ends the work inside, on a run that has ended, names its folder too."""
    try:
        yield
    except BaseException as error:
        _raise_for(run, error, user_error(error))


@contextmanager
def _bad_end_recorded(recording: Recording) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        meaning = user_error(error)
        if recording.at_its_end and isinstance(meaning, Interrupted):
            meaning.hint = meaning.hint or "What it had found is not kept: started again, it begins anew."
        with handled(signal.SIG_IGN):
            try:
                _record(recording, **_ending(meaning, recording))
            except (OSError, RecordError) as unwritten:
                _log.warning("%s: how it ended cannot be recorded: %s", recording.run.path, unwritten)
        _raise_for(recording.run, error, meaning)


def _raise_for(run: Run, error: BaseException, meaning: DynbenchError) -> None:
    """Raise what an error means to the user, with the run's folder where it names no other."""
    meaning.run_path = meaning.run_path or run.path
    if meaning is error:
        raise error
    raise meaning from error


def _record(recording: Recording, **ending: object) -> None:
    if recording.ours:
        run = recording.run
        run.update(warnings=[*run.record().warnings, *recording.warnings], **ending)


def _ending(error: DynbenchError, recording: Recording) -> dict[str, object]:
    """The fields of the record of a run that an error ended."""
    status, failure = Status.FAILED, Failure(error.kind, error.message)
    if recording.ended_by is not None:
        status, failure = Status.INTERRUPTED, Failure(Interrupted.kind, recording.ended_by)
    elif isinstance(error, Interrupted):
        status = Status.INTERRUPTED
    elif isinstance(error, NothingFits) and not isinstance(error, BatchTooLarge):
        status = Status.OOM
    elif isinstance(error, WorkerFailed):
        folder, log = recording.run.path, error.log
        within = str(log.relative_to(folder)) if log is not None and log.is_relative_to(folder) else None
        failure = Failure(error.kind, error.message, error.rank, within)
    return {"status": status, "exit_code": error.exit_code, "failure": failure}

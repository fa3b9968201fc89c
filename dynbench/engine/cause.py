"""What ended a launch, found among what its ranks said, how they ended and where they were last seen."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from dynbench.engine.failure import (
    MEMORY_HINT,
    RankFailure,
    arm_on_turn,
    log_file,
    rank_title,
    read_failures,
    waited_by_its_log,
)
from dynbench.engine.whereabouts import last_seen, not_arrived
from dynbench.errors import (
    BatchTooLarge,
    ConfigError,
    DataError,
    DynbenchError,
    HubError,
    LeakFound,
    NothingFits,
    RecordError,
    ReplicasTooLarge,
    RunLookupError,
    StorageError,
    UsageError,
    WorkerFailed,
)
from dynbench.runs.run import Run

_USER_ERRORS: dict[str, type[DynbenchError]] = {
    error.kind: error
    for error in (UsageError, DataError, HubError, RunLookupError, RecordError, NothingFits, LeakFound)
}
_MEMORY_ERRORS = {error.__name__: error for error in (BatchTooLarge, ReplicasTooLarge)}


def root_cause(run: Run, exit_codes: Mapping[int, int], lost: WorkerFailed | None = None) -> DynbenchError:
    """The error to report for a launch whose ranks ended badly.

    A rank's own record of a cause comes first, the earliest of several; then a rank for which another waited in vain;
    then one that died without a word (those that torchrun terminated last, of others the one that came least far: who
    waited for it may have been killed too); then that the nodes lost each other; what ranks say about each other's end
    comes last.

    Args:
        run: the run that all nodes write into, or this node's part of it.
        exit_codes: rank to exit code, negative for a signal, of this node's ranks that failed.
        lost: what torchrun says of the nodes, where it says anything.
    """
    rank, error = _cause(run, exit_codes, lost)
    error.arm = None if rank is None else arm_on_turn(run, rank)
    return error


def _cause(run: Run, exit_codes: Mapping[int, int], lost: WorkerFailed | None) -> tuple[int | None, DynbenchError]:
    """The rank that ended first, where one did, and its error."""
    failures = read_failures(run)
    causes = [failure for failure in failures if failure.is_cause]
    if causes:
        return causes[0].rank, _as_error(run, causes[0])
    told = {failure.rank for failure in failures}
    aborted = (waited_by_its_log(run, rank) for rank in sorted(exit_codes.keys() - told))
    waiting = [failure for failure in (*failures, *aborted) if failure is not None and failure.kind == "waited"]
    if waiting:
        return _hung(run, waiting, told)
    silent = exit_codes.keys() - told
    if silent:
        first = min(silent, key=lambda rank: (exit_codes[rank] == -signal.SIGTERM, _progress(run, rank), rank))
        return first, _silent_death(run, first, exit_codes[first])
    if lost is not None:
        return None, lost
    if failures:
        return failures[0].rank, _as_error(run, failures[0])
    return None, WorkerFailed("a rank failed and left no record", f"See {run.logs_dir}.")


def _as_error(run: Run, failure: RankFailure) -> DynbenchError:
    path = log_file(run, failure.rank)
    log = str(path)
    if failure.host != socket.gethostname():
        log += f" on {failure.host}"
    if failure.kind == ConfigError.kind:
        return ConfigError(failure.message.splitlines(), failure.hint)
    if failure.kind == NothingFits.kind:
        error = _MEMORY_ERRORS.get(failure.exception, NothingFits)
        ours = f"{rank_title(run, failure.rank)}: {failure.message}"
        return error(ours, failure.hint) if failure.hint else error(f"{ours}; log: {log}", MEMORY_HINT)
    if failure.kind == StorageError.kind:
        return StorageError(f"{rank_title(run, failure.rank)}: {failure.message}; log: {log}", failure.hint)
    if failure.kind in _USER_ERRORS:
        return _USER_ERRORS[failure.kind](failure.message, failure.hint)
    message = f"{rank_title(run, failure.rank)}: {failure.message}; log: {log}"
    return WorkerFailed(message, failure.hint, rank=failure.rank, log=path)


def _silent_death(run: Run, rank: int, exit_code: int) -> WorkerFailed:
    log, title, place = log_file(run, rank), rank_title(run, rank), last_seen(run, rank)
    at = "" if place is None else f" {place}"
    if exit_code >= 0:
        ended = f"{title} ended with exit code {exit_code}{at}; log: {log}"
        return WorkerFailed(ended, "See its log.", rank=rank, log=log)
    name = signal.Signals(-exit_code).name
    hint = "The system kills so when memory runs out: see dmesg." if name == "SIGKILL" else "See its log."
    return WorkerFailed(f"{title} was killed by {name}{at}; log: {log}", hint, rank=rank, log=log)


def _hung(run: Run, waiting: Sequence[RankFailure], told: Collection[int]) -> tuple[int | None, WorkerFailed]:
    """The rank that others waited for: of those that gave up on nobody the one that came least far, silent ones first.

    Where each waited for another, it is the one of all that came least far; of other nodes nothing may be known.
    """
    first, waited = waiting[0], {failure.rank for failure in waiting}
    late = [rank for rank in not_arrived(run) if rank not in waited] or [failure.rank for failure in waiting[1:]]
    in_vain = f"{rank_title(run, first.rank)} waited in vain {first.at or 'in a collective'}"
    with suppress(DynbenchError):  # it is only asked for to say more
        in_vain += f" for {run.config().launch.timeout_s} s (launch.timeout_s)"
    if not late:
        log = log_file(run, first.rank)
        hint = "The rank that it waited for runs on another node: that node's part of the run says more."
        return first.rank, WorkerFailed(f"{in_vain}; log: {log}", hint, rank=first.rank, log=log)

    rank = min(late, key=lambda rank: (_progress(run, rank), rank in told))
    log = log_file(run, rank)
    message = f"{rank_title(run, rank)} hung {last_seen(run, rank) or 'at its start'}: {in_vain}; log: {log}"
    hint = "Where it is slow and does not hang, raise launch.timeout_s (of a benchmark, --set timeout_s=SECONDS)."
    return rank, WorkerFailed(message, hint, rank=rank, log=log)


def _progress(run: Run, rank: int) -> tuple[int, int]:
    """How far a rank came; those that wait for one that is gone came further."""
    place = last_seen(run, rank)
    return place.progress if place is not None else (-1, -1)

"""Where each rank is and why it ended, in small files that outlive it; and what ended a launch, found among them."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dynbench import errors
from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config
from dynbench.engine.turn_order import read_turns
from dynbench.plugins import outside
from dynbench.runs.atomic import release, write_json
from dynbench.runs.run import Run
from dynbench.workloads.own_code import OwnCode, find_own_code

CONNECTING = "meeting the other ranks"
PREPARING = "preparing its data"
BUILDING = "building its model"
RECORDING = "recording"
EVALUATING = "evaluation"
_ORDER = (
    *(CONNECTING, PREPARING, BUILDING),
    *("plan", "data", "forward", "backward", "sync", "optimizer"),
    *(RECORDING, EVALUATING),
)
_BYTES = 96
_POSITION_FILE = re.compile(r"at_(\d+)")

_AFTERMATH = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "application timeout caused pair closure",
    "nccl communicator was aborted",
    "remote process exited",
)
"""What a rank says when another one is gone; never the cause."""
_WAITED = ("timed out waiting", "wait timeout after", "timed out after", "collective operation timeout")
"""What a rank says when another one has not come: of gloo, of the store where ranks meet, and of nccl."""
_WATCHDOG = "watchdog caught collective operation timeout"
"""What NCCL prints before it aborts a rank that has waited for another one."""
_LOG_END = 2**20
"""Bytes at the end of a log that are searched for it."""
MEMORY_HINT = "Lower train.global_batch or workload.max_length, or set schedule.capacity."
_NO_MEMORY = (
    *("out of memory", "status_alloc_failed", "can't allocate memory"),
    *("cublas_status_not_initialized", "unable to find an engine"),  # of cuBLAS and cuDNN without room for workspaces
)
_USER_ERRORS: dict[str, type[errors.DynbenchError]] = {
    error.kind: error
    for error in (
        errors.UsageError,
        errors.DataError,
        errors.HubError,
        errors.RunLookupError,
        errors.RecordError,
        errors.LeakFound,
    )
}
_MEMORY_ERRORS = {error.__name__: error for error in (errors.BatchTooLarge, errors.ReplicasTooLarge)}


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank was."""

    step: int | None
    """Of its arm; None before the first one, and where there are none."""
    phase: str
    """Of the step, or what comes before and after."""
    arm: int | None = None
    """Of a launch of several arms, by its position; None before the first turn."""

    def __str__(self) -> str:
        """As a message goes on: `while preparing its data`, `in backward of step 12`."""
        return f"while {self.phase}" if self.step is None else f"in {self.phase} of step {self.step}"

    @property
    def progress(self) -> tuple[int, int]:
        """Less for a rank that has come less far."""
        position = _ORDER.index(self.phase) if self.phase in _ORDER else len(_ORDER)
        return -1 if self.step is None else self.step, position


class PositionFile:
    """Keeps this rank's position in a file of a run, once opened; a note copies some bytes and makes no system call."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._map: mmap.mmap | None = None
        self._arm = self._step = self._phase = ""

    def open(self, run: Run, rank: int) -> None:
        """Note positions in this run from here on.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = _position_file(run, rank)
        file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.write(file, bytes(_BYTES))  # a page that finds no room later would kill the process
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def at(self, phase: str) -> None:
        """This phase begins now."""
        self._phase = phase
        if self._map is not None:
            self._map[:] = f"{self._arm}:{self._step}:{phase}".encode()[:_BYTES].ljust(_BYTES, b"\0")

    def at_arm(self, arm: int) -> None:
        """The arm that phases are of from here on; noted at once, for the case that it dies in between."""
        self._arm = str(arm)
        self.at(self._phase)

    def at_step(self, step: int) -> None:
        """The step that phases are of from here on."""
        self._step = str(step)

    def remove(self) -> None:
        """This rank has done all its work."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def last_position(run: Run, rank: int) -> Position | None:
    """Where a rank that did not end well was last; None where nothing is known."""
    try:
        text = _position_file(run, rank).read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None
    arm, step, phase = [*text.split(":", 2), "", ""][:3]
    found = Position(int(step) if step.isdigit() else None, phase, int(arm) if arm.isdigit() else None)
    return found if phase else None


def unfinished_ranks(run: Run) -> list[int]:
    """The ranks that began and did not come to their end, as far as their files can be seen here."""
    found = (_POSITION_FILE.fullmatch(path.name) for path in run.ranks_dir.glob("at_*"))
    return sorted(int(match[1]) for match in found if match)


def _position_file(run: Run, rank: int) -> Path:
    return run.ranks_dir / f"at_{rank}"


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Why one rank ended, written by that rank."""

    rank: int
    """The rank, from 0."""
    time_ns: int
    """Since the epoch; torchrun's own records know whole seconds only."""
    host: str
    """Name of its machine."""
    kind: str
    """`memory`, `aftermath`, `waited`, `stopped`, `worker`, or the kind of one of our errors."""
    exception: str
    """Class name."""
    message: str
    """What happened."""
    hint: str
    """What to do about it."""
    at: str = ""
    """What it was at: the phase of a step, or what comes before; empty where that is not known."""

    @property
    def is_cause(self) -> bool:
        """False for a rank that ended because another one did or did not come, or was stopped."""
        return self.kind not in ("aftermath", "waited", "stopped")


def failure_file(run: Run, rank: int) -> Path:
    """Where a rank writes why it ended."""
    return run.ranks_dir / f"failure_{rank}.json"


def record_failure(run: Run, rank: int, error: BaseException) -> RankFailure:
    """Write why this rank ends, also on a disk that is full by now; its first record stays."""
    failure = _failure(run, rank, type(error).__name__, *_described(error, _own_code(run)))
    keep_failure(run, failure)
    return failure


def _failure(run: Run, rank: int, exception: str, kind: str, message: str, hint: str) -> RankFailure:
    at = str(last_position(run, rank) or "")
    return RankFailure(rank, time.time_ns(), socket.gethostname(), kind, exception, message, hint, at)


def keep_failure(run: Run, failure: RankFailure) -> None:
    """Write a rank's failure, unless one of it is there."""
    release(run.path)
    if not failure_file(run, failure.rank).exists():
        write_json(failure_file(run, failure.rank), asdict(failure))


def read_failures(run: Run) -> list[RankFailure]:
    """What the ranks wrote, earliest first."""
    found = (RankFailure(**json.loads(path.read_text("utf-8"))) for path in run.ranks_dir.glob("failure_*.json"))
    return sorted(found, key=lambda failure: failure.time_ns)


def _aborted(run: Run, rank: int) -> RankFailure | None:
    """The failure of a rank that NCCL aborted because another one did not come, by its log; None for other ends."""
    try:
        with log_file(run, rank).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if _WATCHDOG in line.lower()), None)
    return None if line is None else _failure(run, rank, "DistBackendError", "waited", line, "")


def forget_failures(run: Run) -> None:
    """Remove the ranks' failures and positions, before others, perhaps fewer, are launched for the run."""
    for path in (*run.ranks_dir.glob("failure_*.json"), *run.ranks_dir.glob("at_*")):
        path.unlink()


def log_file(run: Run, rank: int) -> Path:
    """Everything a rank prints."""
    return run.logs_dir / f"rank_{rank}.log"


def rank_title(run: Run, rank: int) -> str:
    """What a rank is called: `rank 1`, or `rank 0 (server)` where some serve the others in all that is launched."""
    config = _settings(run)
    return f"rank {rank}" if config is None or read_turns(run.path) else ranks_of(config, 0).title(rank)


def _settings(run: Run) -> Config | None:
    """The run's configuration, where it can be read: it only serves to say more."""
    with suppress(errors.DynbenchError):
        return run.config()
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or on the host.

    By type where there is one. CUDA outside of torch's caching allocator (contexts, cuBLAS workspaces, nccl buffers)
    and the CPU allocator raise a bare RuntimeError or a class of their own under it, known by the message alone.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _says(error, _NO_MEMORY)


def is_aftermath(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone, or has not come."""
    return has_waited(error) or _says(error, _AFTERMATH)


def has_waited(error: BaseException) -> bool:
    """Whether an error says that another rank has not come in the time that there is for it."""
    return _says(error, _WAITED)


def _says(error: BaseException, phrases: Sequence[str]) -> bool:
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in phrases)


def lasting_fault(error: BaseException, run: Run) -> str | None:
    """What to say of an error that every further try would meet: a mistake of the user's, or one of their code's."""
    own = _own_code(run)
    lasting = isinstance(error, errors.UsageError) or _users_line(error, own) is not None
    return _described(error, own)[1] if lasting and not is_aftermath(error) and not is_out_of_memory(error) else None


def _described(error: BaseException, own: OwnCode | None) -> tuple[str, str, str]:
    """Kind, message and hint of a failure."""
    if isinstance(error, errors.DynbenchError):
        return error.kind, error.message or type(error).__name__, error.hint
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    where = _users_line(error, own) or last
    message = (str(error) or type(error).__name__).splitlines()[0]
    message = f"{where}: {type(error).__name__}: {message}" if where else message
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped", message, ""
    if is_out_of_memory(error):
        return errors.NothingFits.kind, message, ""
    if is_aftermath(error):
        hint = "Another rank ended first; where it ran on another node, that node's part of the run says why."
        return "waited" if has_waited(error) else "aftermath", message, hint
    meaning = errors.user_error(error)
    if isinstance(meaning, errors.StorageError) and outside.where(error) is None:  # else the line of code matters more
        hint = "Free some space, or name another --results folder; the rows until then are kept."
        return errors.StorageError.kind, meaning.message if own is None else message, hint
    return errors.WorkerFailed.kind, message, ""


def _users_line(error: BaseException, own: OwnCode | None) -> str | None:
    """The line of code of the user's own, a plug-in's among it, that an error passed."""
    return (own and own.where(error)) or outside.where(error)


def _own_code(run: Run) -> OwnCode | None:
    """The user's own workload of a run, where it has one that can still be read; it only serves to name a line."""
    config = _settings(run)
    with suppress(errors.DynbenchError):
        return find_own_code(config.workload) if config is not None and config.workload.is_own else None
    return None


def root_cause(
    run: Run, exit_codes: Mapping[int, int], lost: errors.WorkerFailed | None = None
) -> errors.DynbenchError:
    """The error to report for a launch whose ranks ended badly.

    A rank's own record of a cause comes first, the earliest of several; then a rank for which another waited in vain;
    then one that died and left no record (those that torchrun terminated last, of others the one that came least far:
    who waited for it may have been killed too); then that the nodes lost each other; what ranks say about each other's
    end comes last.

    Args:
        run: the run that all nodes write into, or this node's part of it.
        exit_codes: rank to exit code, negative for a signal, of this node's ranks that failed.
        lost: what torchrun says of the nodes, where it says anything.
    """
    rank, error = _cause(run, exit_codes, lost)
    position = None if rank is None else last_position(run, rank)
    error.arm = None if position is None else position.arm
    return error


def _cause(
    run: Run, exit_codes: Mapping[int, int], lost: errors.WorkerFailed | None
) -> tuple[int | None, errors.DynbenchError]:
    """The rank that ended first, where one did, and its error."""
    failures = read_failures(run)
    recorded = {failure.rank for failure in failures}
    unrecorded = sorted(exit_codes.keys() - recorded)
    if causes := [failure for failure in failures if failure.is_cause]:
        return causes[0].rank, _as_error(run, causes[0])
    aborted = [failure for rank in unrecorded if (failure := _aborted(run, rank)) is not None]
    if waiting := [failure for failure in (*failures, *aborted) if failure.kind == "waited"]:
        return _hung(run, waiting, recorded)
    if unrecorded:
        first = min(unrecorded, key=lambda rank: (exit_codes[rank] == -signal.SIGTERM, _progress(run, rank), rank))
        return first, _death(run, first, exit_codes[first])
    if lost is not None:
        return None, lost
    if failures:
        return failures[0].rank, _as_error(run, failures[0])
    return None, errors.WorkerFailed("a rank failed and left no record", f"See {run.logs_dir}.")


def _as_error(run: Run, failure: RankFailure) -> errors.DynbenchError:
    path, kind, hint = log_file(run, failure.rank), failure.kind, failure.hint
    if kind == errors.ConfigError.kind:
        return errors.ConfigError(failure.message.splitlines(), hint)
    if kind in _USER_ERRORS:
        return _USER_ERRORS[kind](failure.message, hint)
    message = f"{rank_title(run, failure.rank)}: {failure.message}"
    log = f"{message}; log: {path}" + ("" if failure.host == socket.gethostname() else f" on {failure.host}")
    if kind == errors.NothingFits.kind:
        error = _MEMORY_ERRORS.get(failure.exception, errors.NothingFits)
        return error(message, hint) if hint else error(log, MEMORY_HINT)
    if kind == errors.StorageError.kind:
        return errors.StorageError(log, hint)
    return errors.WorkerFailed(log, hint, rank=failure.rank, log=path)


def _death(run: Run, rank: int, exit_code: int) -> errors.WorkerFailed:
    """Of a rank that died and left no record."""
    log, position, hint = log_file(run, rank), last_position(run, rank), "See its log."
    ended = f"ended with exit code {exit_code}"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        ended = f"was killed by {name}"
        hint = "The system kills so when memory runs out: see dmesg." if name == "SIGKILL" else hint
    at = "" if position is None else f" {position}"
    return errors.WorkerFailed(f"{rank_title(run, rank)} {ended}{at}; log: {log}", hint, rank=rank, log=log)


def _hung(run: Run, waiting: Sequence[RankFailure], recorded: Collection[int]) -> tuple[int, errors.WorkerFailed]:
    """The rank that others waited for: of those that did not time out the one that came least far, unrecorded first.

    Where each waited for another, it is the one of all that came least far; of other nodes nothing may be known.
    """
    first, waited = waiting[0], {failure.rank for failure in waiting}
    late = [rank for rank in unfinished_ranks(run) if rank not in waited] or [failure.rank for failure in waiting[1:]]
    message = f"{rank_title(run, first.rank)} waited in vain {first.at or 'in a collective'}"
    if (config := _settings(run)) is not None:
        message += f" for {config.launch.timeout_s} s (launch.timeout_s)"
    rank, hint = first.rank, "The rank that it waited for runs on another node: that node's part of the run says more."
    if late:
        rank = min(late, key=lambda rank: (_progress(run, rank), rank in recorded))
        message = f"{rank_title(run, rank)} hung {last_position(run, rank) or 'at its start'}: {message}"
        hint = "Where it is slow and does not hang, raise launch.timeout_s (of a benchmark, --set timeout_s=SECONDS)."
    log = log_file(run, rank)
    return rank, errors.WorkerFailed(f"{message}; log: {log}", hint, rank=rank, log=log)


def _progress(run: Run, rank: int) -> tuple[int, int]:
    """How far a rank came; those that wait for one that is gone came further."""
    position = last_position(run, rank)
    return position.progress if position is not None else (-1, -1)

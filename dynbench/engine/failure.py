"""How a rank's end is recorded by itself; `cause` finds among several what the launcher reports."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dynbench.config.ranks import ranks_of
from dynbench.engine.turn_order import read_turns
from dynbench.engine.whereabouts import last_seen
from dynbench.errors import DynbenchError, NothingFits, StorageError, UsageError, WorkerFailed, told
from dynbench.plugins import outside
from dynbench.runs.atomic import release, write_json
from dynbench.runs.run import Run
from dynbench.workloads.own_code import OwnCode, find_own_code

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
"""What a rank says when another one has not come, of gloo, of the store where ranks meet, and of nccl."""
_WATCHDOG = "watchdog caught collective operation timeout"
"""What NCCL prints before it aborts a rank that has waited for another one."""
_LOG_END = 2**20
"""Bytes at the end of a log that are searched for it."""
MEMORY_HINT = "Lower train.global_batch or workload.max_length, or set schedule.capacity."
_NO_MEMORY = (
    *("out of memory", "status_alloc_failed", "can't allocate memory"),
    *("cublas_status_not_initialized", "unable to find an engine"),  # of cuBLAS and cuDNN without room for workspaces
)


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
        """False for a rank that ended because another one did or did not come, or was told to."""
        return self.kind not in ("aftermath", "waited", "stopped")


def failure_file(run: Run, rank: int) -> Path:
    """Where a rank writes why it ended."""
    return run.ranks_dir / f"failure_{rank}.json"


def record_failure(run: Run, rank: int, error: BaseException) -> RankFailure:
    """Write why this rank ends, also on a disk that is full by now; its first word stays."""
    failure = RankFailure(
        rank=rank,
        time_ns=time.time_ns(),
        host=socket.gethostname(),
        kind=_kind(error),
        exception=type(error).__name__,
        message=_message(error, _own_code(run)),
        hint=_hint(error),
        at=str(last_seen(run, rank) or ""),
    )
    keep_failure(run, failure)
    return failure


def keep_failure(run: Run, failure: RankFailure) -> None:
    """Write what a rank said, unless its word is there."""
    release(run.path)
    if not failure_file(run, failure.rank).exists():
        write_json(failure_file(run, failure.rank), asdict(failure))


def note_turn(run: Run, rank: int, arm: int) -> None:
    """Keep which arm of the launch a rank works for, for the case that it dies without a word.

    Written over what is there, so that at no moment there is nothing.
    """
    file = os.open(run.ranks_dir / f"turn_{rank}", os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(file, b"%4d" % arm, 0)
    finally:
        os.close(file)


def arm_on_turn(run: Run, rank: int) -> int | None:
    """The arm that a rank worked for last, by its position; None where it got to none."""
    try:
        return int((run.ranks_dir / f"turn_{rank}").read_text(encoding="ascii"))
    except (OSError, ValueError):  # it died while noting it
        return None


def read_failures(run: Run) -> list[RankFailure]:
    """What the ranks wrote, earliest first."""
    found = [
        RankFailure(**json.loads(path.read_text(encoding="utf-8"))) for path in run.ranks_dir.glob("failure_*.json")
    ]
    return sorted(found, key=lambda failure: failure.time_ns)


def waited_by_its_log(run: Run, rank: int) -> RankFailure | None:
    """What a rank would have said that NCCL aborted, because another one did not come; None for any other end."""
    try:
        with log_file(run, rank).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if _WATCHDOG in line.lower()), None)
    at = str(last_seen(run, rank) or "")
    if line is None:
        return None
    return RankFailure(rank, time.time_ns(), socket.gethostname(), "waited", "DistBackendError", line, "", at)


def forget_failures(run: Run) -> None:
    """Take away what the ranks wrote and where they were, before others, perhaps fewer, are launched for the run."""
    for path in (*run.ranks_dir.glob("failure_*.json"), *run.ranks_dir.glob("at_*")):
        path.unlink()


def log_file(run: Run, rank: int) -> Path:
    """Everything a rank prints."""
    return run.logs_dir / f"rank_{rank}.log"


def rank_title(run: Run, rank: int) -> str:
    """What a rank is called: `rank 1`, or `rank 0 (server)` where some serve the others in all that is launched."""
    try:
        return f"rank {rank}" if read_turns(run.path) else ranks_of(run.config(), 0).title(rank)
    except DynbenchError:  # it is only asked for to say more of a rank
        return f"rank {rank}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or on the host.

    By type where there is one. CUDA outside of torch's caching allocator (contexts, cuBLAS workspaces, nccl buffers)
    and the CPU allocator raise a bare RuntimeError or a class of their own under it, known by the message alone.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _NO_MEMORY)


def is_aftermath(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone, or has not come."""
    return has_waited(error) or _says(error, _AFTERMATH)


def has_waited(error: BaseException) -> bool:
    """Whether an error says that another rank has not come in the time that there is for it."""
    return _says(error, _WAITED)


def _says(error: BaseException, phrases: Sequence[str]) -> bool:
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in phrases)


def _kind(error: BaseException) -> str:
    if isinstance(error, DynbenchError):
        return error.kind
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped"
    if is_out_of_memory(error):
        return NothingFits.kind
    if has_waited(error):
        return "waited"
    if is_aftermath(error):
        return "aftermath"
    return StorageError.kind if _of_the_disk(error) else WorkerFailed.kind


def _of_the_disk(error: BaseException) -> bool:
    """Whether a disk or its permissions are in the way; where code from outside met that, its line matters more."""
    return isinstance(told(error), StorageError) and outside.where(error) is None


def _message(error: BaseException, own: OwnCode | None) -> str:
    if isinstance(error, DynbenchError):
        return error.message or type(error).__name__
    if own is None and _of_the_disk(error):
        return told(error).message
    return f"{_where(error, own)}{(str(error) or type(error).__name__).splitlines()[0]}"


def lasting_fault(error: BaseException, run: Run) -> str | None:
    """What to say of an error that every further try would meet: a mistake of the user's, or one of their code's."""
    own = _own_code(run)
    theirs = (own and own.where(error)) or outside.where(error)
    lasting = isinstance(error, UsageError) or theirs is not None
    return _message(error, own) if lasting and not is_aftermath(error) and not is_out_of_memory(error) else None


def _own_code(run: Run) -> OwnCode | None:
    """The user's own workload of a run, where it has one that can still be read."""
    try:
        settings = run.config().workload
        return find_own_code(settings) if settings.is_own else None
    except DynbenchError:  # it is only asked for to name a line
        return None


def _hint(error: BaseException) -> str:
    if isinstance(error, DynbenchError):
        return error.hint
    if is_aftermath(error):
        return "Another rank ended first; where it ran on another node, that node's part of the run says why."
    if _of_the_disk(error):
        return "Free some space, or name another --results folder; the rows until then are kept."
    return ""


def _where(error: BaseException, own: OwnCode | None) -> str:
    """The line that raised an error; where it passed code of the user's own, a plug-in's among it, the line there."""
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    where = (own and own.where(error)) or outside.where(error) or last
    return f"{where}: {type(error).__name__}: " if where else ""

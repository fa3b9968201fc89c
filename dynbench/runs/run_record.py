"""The content of `run.json`: a run's id and name, its status, how it ended, and the process that it belongs to."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter

from dynbench.errors import RunLookupError
from dynbench.runs.atomic import jsonable
from dynbench.runs.records import SCHEMA_VERSION

_SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_SUFFIX_LENGTH = 4
_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*)-(?P<suffix>[a-z2-9]{4})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NOT_NAMES = ("", os.curdir, os.pardir)
"""Last parts of a path that name no folder within the one before."""
NAME_RULE = "A name starts with a letter or digit and goes on with letters, digits, '.', '_' or '-', up to 64 in all."


def new_id(slug: str) -> str:
    """A run id: UTC time, slug, random suffix, like `20261120-145312-dynamic-k3f9`."""
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{make_slug(slug)}-{suffix}"


def make_slug(text: str) -> str:
    """Lower-case letters and digits joined by single dashes; `run` when nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "run"


def slug_of(run_id: str) -> str | None:
    """The slug within an id; None when it is not an id."""
    match = _ID.fullmatch(run_id)
    return match["slug"] if match else None


def ids_in(text: str) -> set[str]:
    """Every id that stands in a text."""
    return {match[0] for match in _ID.finditer(text)}


def is_folder_name(text: str) -> bool:
    """Whether a text names something within a folder, and cannot lead out of it."""
    return text not in NOT_NAMES and os.sep not in text and text.isprintable()


def _run_id(text: str) -> str:
    if not is_folder_name(text):
        raise ValueError(f"{text!r} is no id of a run")
    return text


RunId = Annotated[str, AfterValidator(_run_id)]
"""An id as a record names it, looked up below a results folder."""


def is_name(text: str) -> bool:
    """Whether a run may be called so."""
    return _NAME.fullmatch(text) is not None


def check_spelling(name: str) -> None:
    """Refuse names that a shell, a file system or the lookup would trip over.

    Raises:
        RunLookupError: the name is not of the allowed form, or looks like an id.
    """
    if not is_name(name):
        raise RunLookupError(f"--name {name!r}: not allowed as a name", NAME_RULE)
    if _ID.fullmatch(name):
        raise RunLookupError(f"--name {name!r}: has the form of a run id", "Choose a name that no id can have.")


class Status(StrEnum):
    """Where a run stands. `lost` is never written: it is what an unfinished run shows when its process is gone."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    OOM = "oom"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """True when nothing will be added to the run."""
        return self not in (Status.CREATED, Status.RUNNING)


UNSUCCESSFUL = frozenset({Status.FAILED, Status.INTERRUPTED, Status.OOM, Status.LOST})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.CREATED: frozenset({Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.INTERRUPTED, Status.OOM}),
    Status.RUNNING: frozenset({Status.COMPLETED, Status.FAILED, Status.INTERRUPTED, Status.OOM}),
    Status.INTERRUPTED: frozenset({Status.RUNNING}),
    Status.FAILED: frozenset({Status.RUNNING}),
    Status.OOM: frozenset({Status.RUNNING}),
    Status.COMPLETED: frozenset({Status.RUNNING}),
    Status.LOST: frozenset({Status.RUNNING, Status.FAILED, Status.INTERRUPTED}),
}


def check_transition(old: Status, new: Status) -> None:
    """Refuse a change of state that cannot happen.

    A run that is over may only run again, which is how an unfinished comparison goes on.

    Raises:
        ValueError: the change is not in `TRANSITIONS`.
    """
    if new != old and new not in TRANSITIONS[old]:
        raise ValueError(f"a run cannot go from {old} to {new}")


def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


def start_mark(pid: int) -> str | None:
    """What tells a process from a later one with the same number: boot id and start time in clock ticks.

    None when there is no such process, or the system has no `/proc` (see proc(5), `/proc/pid/stat`, field 22).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return f"{_boot_id()}:{fields[19]}"


def this_process() -> dict[str, Any]:
    """`host`, `pid` and `pid_start` of a record that this process works on."""
    pid = os.getpid()
    return {"host": host_name(), "pid": pid, "pid_start": start_mark(pid)}


def is_gone(host: str, pid: int, mark: str | None) -> bool:
    """True when the process is certainly not running any more; another machine's processes are never certain.

    Args:
        host: that the process runs on.
        pid: its number.
        mark: of it, by `start_mark`; None where the system had no `/proc`.
    """
    if host != host_name():
        return False
    if mark is not None and Path("/proc/self/stat").exists():
        return start_mark(pid) != mark
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return text


def _name(text: str) -> str:
    if not all(is_name(part) for part in text.split(":", 1)):  # FILE:NAME is a launch that a file of runs holds
        raise ValueError(f"{text!r} is not allowed as a name. {NAME_RULE}")
    return text


Moment = Annotated[str, AfterValidator(_moment)]
"""ISO 8601, with its time zone."""
Name = Annotated[str, AfterValidator(_name)]


@dataclass(frozen=True)
class Failure:
    """Why a run ended before its time."""

    kind: str
    """The error's kind: worker, memory, interrupted, …"""
    message: str
    """What happened, in a line."""
    rank: int | None = None
    """The rank that failed first; null where none did."""
    log: str | None = None
    """The rank's log, relative to the run folder."""


@dataclass(frozen=True)
class RunRecord:
    """One run; times are ISO 8601 in UTC with microseconds."""

    id: str
    """The run's id, the name of its folder."""
    name: Name | None
    """The name that finds it; null where it has none."""
    command: str
    """The subcommand that made it: train, solve, compare, …"""
    status: Status
    """created, running, completed, failed, interrupted or oom; commands also show lost."""
    created: Moment
    """When the folder was made."""
    host: str
    """Name of the machine."""
    pid: int
    """Process of the launcher."""
    pid_start: str | None
    """Tells the process from a later one with the same number; see `start_mark`."""
    version: str
    """dynbench's version."""
    argv: list[str] = field(default_factory=list)
    """The command line."""
    started: Moment | None = None
    """When it began to run."""
    ended: Moment | None = None
    """When it ended."""
    exit_code: int | None = None
    """What the command exited with; null while it runs."""
    failure: Failure | None = None
    """Why it ended before its time; null where it did not."""
    warnings: list[str] = field(default_factory=list)
    """What was warned of, before or after it ran."""
    group: str | None = None
    """Id of the comparison that it was made for; null for what was made by itself."""
    schema_version: int = SCHEMA_VERSION
    """Version of the record's form."""

    def as_dict(self) -> dict[str, object]:
        """The object written to `run.json`."""
        return asdict(self)


_ADAPTER = TypeAdapter(RunRecord)


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def changed(record: RunRecord, changes: Mapping[str, object]) -> RunRecord:
    """A record with some fields replaced; values are checked, a failure may be given as a mapping.

    Raises:
        TypeError: a field that a record does not have.
        ValueError: a value of the wrong type.
    """
    if unknown := changes.keys() - {item.name for item in fields(RunRecord)}:
        raise TypeError(f"a run record has no field {', '.join(sorted(unknown))}")
    return _ADAPTER.validate_python({**record.as_dict(), **jsonable(changes)})

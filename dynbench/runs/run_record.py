"""The content of `run.json`: who a run is, where it stands, how it ended, and which process it belongs to."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter

from dynbench.runs.atomic import jsonable
from dynbench.runs.json_record import read_json
from dynbench.runs.names import NAME_RULE, is_name
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.status import Status

REMEDY = "Restore the file, or remove the folder."


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
    """True when the process is certainly not running any more; another machine's processes are never certain."""
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
    """Tells the process from a later one with the same number; see `process.start_mark`."""
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
    unknown = set(changes) - {item.name for item in fields(RunRecord)}
    if unknown:
        raise TypeError(f"a run record has no field {', '.join(sorted(unknown))}")
    return _ADAPTER.validate_python({**record.as_dict(), **{k: jsonable(v) for k, v in changes.items()}})


def read_record(path: Path) -> RunRecord:
    """Read a `run.json`.

    Keys that this version does not know are left out, as long as the schema version is known.

    Raises:
        RecordError: as `read_json`.
    """
    return read_json(path, RunRecord, REMEDY, SCHEMA_VERSION)

"""A run's folder: where everything lies in it, its configuration and provenance, and its record, `run.json`.

The record holds the run's id and name, its status, how it ended, and the process that it belongs to.
"""

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

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import ConfigError, RecordError, RunLookupError, UsageError
from dynbench.plugins.outside import VARIABLE, digests
from dynbench.runs.atomic import is_special, jsonable, locked, read_json, release, reserve, write_json
from dynbench.runs.records import SCHEMA_VERSION

_LOCK = ".lock"
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


# The folder -----------------------------------------------------------------------------------------------------------


class _Within:
    """A path within a run folder, as an attribute of the run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: Run, owner: type[Run]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class Run:
    """A run folder.

    Args:
        path: the folder; its name is the run's id.
    """

    path: Path

    record_file = _Within("run.json")
    """`run.json`."""
    config_file = _Within("config.yaml")
    """`config.yaml`: resolved, every default written out."""
    env_file = _Within("env.json")
    """`env.json`: provenance."""
    ranks_dir = _Within("ranks")
    """Where the ranks write their rows."""
    logs_dir = _Within("logs")
    """Where the ranks' output goes."""
    figures_dir = _Within("figures")
    """Where figures go, each with the numbers drawn."""
    profiler_dir = _Within("profiler")
    """Traces of profiled steps, and what their time went to."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    def rank_file(self, rank: int) -> Path:
        """The rows of one rank."""
        return self.ranks_dir / f"rank_{rank}.csv"

    def calls_file(self, rank: int) -> Path:
        """When the collectives of one rank were under way."""
        return self.ranks_dir / f"calls_{rank}.csv"

    def held_file(self, rank: int) -> Path:
        """What one rank held in its first step; the launcher puts it into `env.json`."""
        return self.ranks_dir / f"held_{rank}.json"

    def profile_file(self, rank: int) -> Path:
        """What the time of one rank's profiled steps went to."""
        return self.profiler_dir / f"profile_{rank}.json"

    def record(self) -> RunRecord:
        """The record as it is on disk now.

        Raises:
            RecordError: `run.json` cannot be read.
        """
        return read_json(self.record_file, RunRecord, "Restore the file, or remove the folder.", SCHEMA_VERSION)

    @property
    def name(self) -> str | None:
        """The name, if the run has one."""
        return self.record().name

    @property
    def label(self) -> str:
        """The name, else the id."""
        return self.name or self.id

    @property
    def status(self) -> Status:
        """The recorded status, or `lost` when the run is unfinished and its process is gone."""
        return current_status(self.record())

    @property
    def reference(self) -> dict[str, object]:
        """How `--json` names it: id, name, path and status."""
        record = self.record()
        return {"id": self.id, "name": record.name, "path": self.path, "status": current_status(record)}

    def update(self, **changes: object) -> RunRecord:
        """Replace fields of the record, atomically; what another process changes meanwhile is kept.

        A run set `running` belongs to this process from then on and forgets how it ended before; `started` and
        `ended` follow the status unless given. While it runs, room for writing its end is reserved on the disk.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
            RecordError: `run.json` cannot be read.
            UsageError: it is to be set running, and another process works on it.
            ValueError: a change of status that cannot happen, or a value of the wrong type.
            TypeError: a field that a record does not have.
        """
        with locked(self.path / _LOCK):
            old = self.record()
            if "status" in changes:
                status = Status(str(changes["status"]))
                check_transition(current_status(old), status)
                changes = {**_following(status), **changes}
                if status is Status.RUNNING:
                    if not this_process().items() <= old.as_dict().items():
                        refuse_running(self)
                    reserve(self.path)
                else:
                    release(self.path)
            new = changed(old, changes)
            write_json(self.record_file, new)
        return new

    def config(self) -> Config:
        """The resolved configuration.

        Rules over several fields are not checked again: the run has been made.

        Raises:
            RecordError: no `config.yaml`, or one that this version cannot read.
        """
        if is_special(self.config_file):
            raise RecordError(f"{self.config_file}: it is no file", "Restore it from a copy.")
        try:
            return load_config(self.config_file, rules=False)
        except ConfigError as error:
            hint = "The run was made by another version of dynbench, or the file was changed by hand."
            if missing := self._missing_plugins():
                hint = f"The run was made with plug-ins that are not loaded: name {missing} in {VARIABLE}."
            raise RecordError(error.message, hint) from error
        except UsageError as error:
            raise RecordError(error.message, "The run stopped before its configuration was written.") from error

    def _missing_plugins(self) -> str:
        """Files of plug-ins that it was made with and this process has not loaded."""
        try:
            made_with = self.env().get("plugins")
        except RecordError:
            return ""
        return ", ".join(set(made_with) - set(digests())) if isinstance(made_with, dict) else ""

    def env(self) -> dict[str, object]:
        """The provenance.

        Raises:
            RecordError: no `env.json`, or not a JSON object.
        """
        return read_json(self.env_file, dict[str, object], "The run stopped before it was written, or it was changed.")


def _following(status: Status) -> dict[str, object]:
    """The fields that change with a status."""
    if status is Status.RUNNING:
        return {"started": now(), "ended": None, "exit_code": None, "failure": None, **this_process()}
    return {"ended": now()} if status.is_over else {}


def current_status(record: RunRecord) -> Status:
    """The status that a record shows: as written, or `lost` when its process is gone."""
    if not record.status.is_over and is_gone(record.host, record.pid, record.pid_start):
        return Status.LOST
    return record.status


def refuse_running(run: Run) -> None:
    """Leave a run alone that a process works on.

    Raises:
        UsageError: one does, or did on another host, of which nothing can be known here.
    """
    record = run.record()
    if current_status(record) is Status.RUNNING:
        raise UsageError(
            f"{record.name or record.id}: is running in process {record.pid} on {record.host}",
            "Wait until it ends. If that host is gone, start it anew.",
        )


def duration_s(record: RunRecord) -> float | None:
    """Seconds from the start to the end, or until now while it runs.

    None when it never started, was lost, or the clock was set back meanwhile.
    """
    if record.started is None:
        return None
    status = current_status(record)
    end = now() if status is Status.RUNNING else record.ended
    if end is None:
        return None
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(record.started)).total_seconds()
    return seconds if seconds >= 0 else None

"""One run folder: its record, configuration, provenance, and where everything lies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import ConfigError, RecordError, UsageError
from dynbench.plugins.outside import VARIABLE, digests
from dynbench.runs.atomic import is_special, locked, read_json, release, reserve, write_json
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run_record import RunRecord, Status, changed, check_transition, is_gone, now, this_process

_LOCK = ".lock"


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

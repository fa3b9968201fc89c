"""The registry: a folder of run folders, found by id, unique prefix, name, or `@latest`."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from dynbench import __version__
from dynbench.errors import RecordError, RunLookupError, UsageError, did_you_mean
from dynbench.runs.atomic import locked, write_json
from dynbench.runs.lookup import Entries, Runs, check_own_files, why_foreign
from dynbench.runs.run import (
    NOT_NAMES,
    Run,
    RunRecord,
    Status,
    check_spelling,
    current_status,
    new_id,
    now,
    slug_of,
    this_process,
)

LATEST = "@latest"
_LOCK = ".lock"
_MATCHES_SHOWN = 5
_log = logging.getLogger(__name__)


def default_root() -> Path:
    """`$DYNBENCH_RESULTS`, else `results` under the current folder."""
    return Path(os.environ.get("DYNBENCH_RESULTS") or "results")


def results_option(root: Path) -> str:
    """What a command that is to be copied needs to find the same registry; empty where it is the default one."""
    return "" if root == default_root() else f" --results {shlex.quote(str(root))}"


class Naming(TypedDict, total=False):
    """What a new run is called, handed on by everything that makes one."""

    name: str | None
    """To find it by; None for no name."""
    replace: bool
    """Take the name over from an older run, which keeps its id."""
    argv: Sequence[str] | None
    """The command line, for the record; this process's when None."""


@dataclass(frozen=True)
class RunStore:
    """The runs of one results folder.

    Args:
        root: the results folder; made when the first run is.
        group: id of the comparison that what is made here belongs to.
    """

    root: Path
    group: str | None = None

    @classmethod
    def of(cls, run: Run) -> RunStore:
        """The registry that a run lies in, which is another than the command's where the run is named by a path."""
        return cls(run.path.parent)

    def within(self, comparison: Run) -> RunStore:
        """The same registry; what is made through it belongs to a comparison."""
        return replace(self, group=comparison.id)

    def create(
        self, command: str, slug: str, name: str | None = None, replace: bool = False, argv: Sequence[str] | None = None
    ) -> Run:
        """Make a run folder, with its record in state `created`.

        Args:
            command: the subcommand that makes it.
            slug: what the id says about it, like the policy.
            name: a name to find it by.
            replace: take the name over from an older run, which keeps its id.
            argv: the command line; this process's when None.

        Raises:
            RunLookupError: the name is not allowed or in use.
            UsageError: the results folder cannot be written.
        """
        self.check_name(name, replace=True)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with locked(self.root / _LOCK):  # so that two runs cannot take one name
                self.check_name(name, replace)
                run = self._make_folder(slug)
                try:
                    self._fill(run, command, name, list(sys.argv if argv is None else argv))
                except OSError:
                    shutil.rmtree(run.path, ignore_errors=True)
                    raise
        except OSError as error:
            raise self._not_writable(error) from error
        return run

    def _fill(self, run: Run, command: str, name: str | None, argv: list[str]) -> None:
        for folder in (run.ranks_dir, run.logs_dir):
            folder.mkdir()
        made = {"version": __version__, "argv": argv, "group": self.group, **this_process()}
        record = RunRecord(run.id, name, command, Status.CREATED, now(), **made)
        for older in self._named(name):
            older.update(name=None)
        write_json(run.record_file, record)

    def check_place(self) -> None:
        """Refuse a results folder that could not be written, as far as its own or its nearest folder says so.

        Touches nothing.

        Raises:
            UsageError: it could not.
        """
        root = self.root.absolute()
        nearest = next(path for path in (root, *root.parents) if os.path.lexists(path))
        if not nearest.is_dir():
            raise self._not_writable(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise self._not_writable(OSError(errno.EACCES, os.strerror(errno.EACCES)))

    def _not_writable(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self.root}: the results folder cannot be written: {error.strerror}",
            "Name another with --results DIR or DYNBENCH_RESULTS.",
        )

    def check_name(self, name: str | None, replace: bool = False) -> None:
        """Refuse a name that is not allowed, or in use when `replace` is not given. Touches nothing.

        Raises:
            RunLookupError: the name cannot be taken.
        """
        if name is None:
            return
        check_spelling(name)
        holders = self._named(name)
        if holders and not replace:
            raise RunLookupError(
                f"--name {name}: in use by run {holders[0].id}",
                "Choose another name, or give --replace: the older run keeps its id and loses the name.",
            )

    def give_name(self, run: Run, name: str) -> None:
        """Name a run that has none, unless another took the name meanwhile."""
        with locked(self.root / _LOCK):
            if holders := self._named(name):
                _log.warning("%s: is not named %s, which is run %s", run.id, name, holders[0].id)
            else:
                run.update(name=name)

    def pass_name(self, older: Run, run: Run) -> None:
        """Give a run the name that another has, if it still has one."""
        with locked(self.root / _LOCK):
            name = older.name
            if name is not None:
                older.update(name=None)
                run.update(name=name)

    def list(self) -> Runs:
        """All runs whose record can be read, oldest first; the others are warned about."""
        return [run for run, _ in self.entries()]

    def entries(self) -> Entries:
        """All runs with their records, oldest first; records that cannot be read are warned about and left out."""
        found = []
        for run in self._folders():
            try:
                found.append((run, run.record()))
            except RecordError as error:
                _log.warning("%s (%s)", error.message, error.hint)
        return sorted(found, key=lambda entry: (entry[1].created, entry[0].id))

    def resolve(self, ref: str, *, read: bool = True) -> Run:
        """The run that a reference means.

        Args:
            ref: an id, a name, a unique prefix of an id, `@latest`, `@latest:WORD` with a command or the slug of an
                id as the word, or the path of a run folder.
            read: what lies in its folder is to be read, which has to be its own.

        Raises:
            RunLookupError: nothing is meant, or more than one.
            RecordError: something in the folder leads elsewhere.
        """
        if os.sep in ref:
            if not (Path(ref) / "run.json").is_file():
                hint = "dynbench runs ls lists the runs."
                raise RunLookupError(f"run {ref!r}: not a run folder (no run.json in it)", hint)
            run = Run(Path(ref).resolve())
        elif ref not in NOT_NAMES and not ref.startswith("@") and (self.root / ref / "run.json").is_file():
            run = Run(self.root / ref)
        else:
            run = self._latest(ref) if ref.startswith("@") else self._called(ref)
        if read:
            check_own_files(run.path)
        return run

    def _called(self, ref: str) -> Run:
        """The run of a name, else the only one whose id begins so, its record readable or not."""
        entries = self.entries()
        if named := next((run for run, record in entries if record.name == ref), None):
            return named
        matches = [run for run in self._folders() if ref and run.id.startswith(ref)]
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise self._unknown(f"run {ref!r}: not found in {self.root}", ref, entries)
        about = {run.path: record.name or current_status(record) for run, record in entries}
        shown = ", ".join(f"{run.id} ({about.get(run.path, 'unreadable')})" for run in matches[:_MATCHES_SHOWN])
        more = f" and {len(matches) - _MATCHES_SHOWN} more" if len(matches) > _MATCHES_SHOWN else ""
        raise RunLookupError(f"run {ref!r}: {len(matches)} ids begin so: {shown}{more}", "Give more of the id.")

    def _latest(self, ref: str) -> Run:
        """The newest run, of a command or with a slug where `@latest:WORD` names one."""
        head, _, word = ref.partition(":")
        if head != LATEST:
            raise RunLookupError(f"run {ref!r}: not a reference", f"Known: {LATEST}, {LATEST}:WORD.")
        entries = self.entries()
        words = [(run, {slug_of(run.id) or record.command, record.command}) for run, record in entries]
        if chosen := [run for run, own in words if not word or word in own]:
            return chosen[-1]
        if not words:
            raise self._unknown(f"run {ref!r}: no run in {self.root}", ref, entries)
        known = sorted({each for _, own in words for each in own})
        raise RunLookupError(
            f"run {ref!r}: no such run in {self.root}. {did_you_mean(word, known)}".rstrip(),
            f"There are: {', '.join(known)}.",
        )

    @staticmethod
    def _unknown(message: str, ref: str, entries: Entries) -> RunLookupError:
        if not entries:
            return RunLookupError(message, "There are no runs there yet; dynbench train --name NAME makes one.")
        known = [word for run, record in entries for word in (run.id, record.name) if word]
        return RunLookupError(f"{message}. {did_you_mean(ref, known)}".rstrip(), "dynbench runs ls lists the runs.")

    def check_removable(self, run: Run, force: bool = False) -> None:
        """Refuse to remove what is not a run of this registry, by its own record, and what is still running.

        Args:
            run: what is to be removed.
            force: also when it is running.

        Raises:
            RunLookupError: it is one of these.
        """
        if reason := why_foreign(self.root, run):
            raise RunLookupError(
                f"{run.path}: {reason}, so it is not removed", f"Only runs of {self.root} are; remove it by hand."
            )
        status = run.status
        if not force and not status.is_over:
            raise RunLookupError(f"run {run.id}: is {status}", "Stop it first, or give --force.")

    def remove(self, run: Run, force: bool = False) -> None:
        """Delete a run folder.

        Args:
            run: what to delete.
            force: also when it is running.

        Raises:
            RunLookupError: as `check_removable`.
            UsageError: the folder cannot be deleted.
        """
        self.check_removable(run, force)
        try:
            shutil.rmtree(run.path)
        except OSError as error:
            raise UsageError(
                f"{run.path}: cannot be removed: {error.strerror}", "Check who owns it, and that nothing holds it."
            ) from error

    def _folders(self) -> Iterator[Run]:
        if self.root.is_dir():
            for path in sorted(self.root.iterdir()):
                try:
                    registered = (path / "run.json").is_file()
                except PermissionError:
                    _log.warning("%s: cannot be read", path)
                    continue
                if registered:
                    yield Run(path)

    def _named(self, name: str | None) -> Runs:
        return [] if name is None else [run for run, record in self.entries() if record.name == name]

    def _make_folder(self, slug: str) -> Run:
        while True:
            path = self.root / new_id(slug)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return Run(path)

"""The registry: a folder of run folders, found by id, unique prefix, name or `@latest`; what of it belongs together."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypedDict
from zipfile import BadZipFile, ZipFile

from dynbench import __version__
from dynbench.errors import RecordError, RunLookupError, UsageError, did_you_mean
from dynbench.runs.atomic import is_special, locked, write_json
from dynbench.runs.export import EXPORT_FILE, RUNS
from dynbench.runs.run import (
    NOT_NAMES,
    Run,
    RunRecord,
    Status,
    check_spelling,
    current_status,
    ids_in,
    new_id,
    now,
    slug_of,
    this_process,
)

Runs: TypeAlias = list[Run]
Entries: TypeAlias = list[tuple[Run, RunRecord]]
LATEST = "@latest"
_LOCK = ".lock"
_MATCHES_SHOWN = 5
_log = logging.getLogger(__name__)
_MAKES = ("compare.json", "cells.json")
"""Files of a comparison that list what it launched."""
_READS = (*_MAKES, "comparison.json", "runs.json", "solve.json", "recipe.yaml", "config.yaml")
"""Files of an entry that name the runs which it cannot do without: arms, probes, plans."""


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


# What belongs together ------------------------------------------------------------------------------------------------


def check_own_files(folder: Path) -> None:
    """Refuse a run folder with a link that leads out of it, and with what is neither a file nor a folder.

    Through such a link an analysis would write elsewhere and a report show what lies there; from a pipe or a device it
    would read without an end. Links within the folder lead nowhere else.

    Raises:
        RecordError: the first of them.
    """
    base = folder.resolve()
    for path in folder.rglob("*"):
        if path.is_symlink():
            leads_within = path.exists() and base in path.resolve().parents
            reason = "" if leads_within else "is a link that leads out of the folder, or nowhere"
        else:
            reason = "is a pipe, a socket or a device" if is_special(path) and not path.is_dir() else ""
        if reason:
            hint = "Remove it, or put what is meant in its place."
            raise RecordError(f"{path}: {reason}, so the run is not read", hint)


def groups_of(entries: Entries) -> dict[str, str]:
    """Run id to the id of the comparison that the run was made for.

    The run's record says it; where it does not, the list of launches of a comparison that is there. A link, or a
    copy of a run under another name, belongs to none.
    """
    listed = {
        run_id: run.id
        for run, record in entries
        if record.command == "compare"
        for run_id in _named_in(run.path, _MAKES) - {run.id}
    }
    own = [(run, record) for run, record in entries if record.id == run.id and not run.path.is_symlink()]
    groups = {run.id: record.group or listed.get(run.id) for run, record in own}
    return {run_id: group for run_id, group in groups.items() if group not in (None, run_id)}


def members_of(group: str, groups: Mapping[str, str]) -> list[str]:
    """Ids of what was made for a comparison, what that made in turn included."""
    own = [run_id for run_id, other in groups.items() if other == group]
    return [*own, *(further for run_id in own for further in members_of(run_id, groups))]


def why_foreign(root: Path, run: Run) -> str | None:
    """Why a folder is not a run of the registry `root`; None where its own record says that it is one."""
    if run.id in NOT_NAMES or run.path.parent.resolve() != root.resolve():
        return "is not in the registry"
    if run.path.is_symlink():
        return "is a link"
    try:
        recorded = run.record().id
    except RecordError:
        return "has no run.json that can be read"
    return None if recorded == run.id else f"holds the record of another run, {recorded}"


def strangers(root: Path) -> list[tuple[Path, str]]:
    """Folders in `root` that are no runs of it, each with the reason; hidden ones are left out."""
    if not root.is_dir():
        return []
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    reasons = [(path, why_foreign(root, Run(path))) for path in folders]
    return [(path, reason) for path, reason in reasons if reason is not None]


def plan_removal(
    root: Path, chosen: Sequence[Run], comparisons: Sequence[Run], entries: Entries
) -> tuple[list[Run], dict[Run, str]]:
    """What goes together with the runs chosen.

    What lies in the results folder reads a run where one of its files names the id, be its own record readable or not.

    Args:
        root: the results folder.
        chosen: what is removed in any case.
        comparisons: those of them of which all goes that was made for them and that nothing reads which stays.
        entries: of the registry.

    Returns:
        The runs of the comparisons that go with them; and those that stay, as something else reads them, each with the
        name of the folder that does.
    """
    groups, known = groups_of(entries), {run.id: run for run, _ in entries}
    taken = {run.id for run in chosen}
    made = [run_id for run in comparisons for run_id in members_of(run.id, groups)]
    members = {run_id: known[run_id] for run_id in made if run_id not in taken}
    reads = _reads_of(root, members)
    in_use: dict[Run, str] = {}
    while True:
        used = {
            run_id: folder
            for folder, ids in reads.items()
            if folder not in taken and folder not in members
            for run_id in members
            if run_id in ids
        }
        if not used:
            return list(members.values()), in_use
        in_use |= {members.pop(run_id): folder for run_id, folder in used.items()}


def _reads_of(root: Path, wanted: Iterable[str]) -> dict[str, set[str]]:
    """Name of every folder in the results folder to which of the ids its files name, less its own and its copies."""
    ids = set(wanted)
    if not ids:
        return {}
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    return {path.name: (_named_in(path, _READS) & ids) - {path.name} - _copies_in(path) for path in folders}


def _copies_in(folder: Path) -> set[str]:
    """Ids of the runs that an analysis against an exported file has in its copy of the file, and reads there."""
    try:
        with ZipFile(folder / EXPORT_FILE) as file:
            return {name.split("/")[1] for name in file.namelist() if name.startswith(f"{RUNS}/")}
    except (OSError, BadZipFile):
        return set()


def _named_in(folder: Path, names: Iterable[str]) -> set[str]:
    """Ids of runs that stand in some files of a folder; files that are not there or cannot be read name none."""
    found: set[str] = set()
    for name in names:
        try:
            found |= ids_in((folder / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return found


def size_of(run: Run) -> int:
    """Bytes of the files of a run folder."""
    return sum(path.lstat().st_size for path in run.path.rglob("*") if path.is_symlink() or path.is_file())

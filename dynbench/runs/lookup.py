"""Finding runs by what they are called, and the entries that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from zipfile import BadZipFile, ZipFile

from dynbench.errors import RecordError
from dynbench.runs.atomic import is_special
from dynbench.runs.export import EXPORT_FILE, RUNS
from dynbench.runs.run import NOT_NAMES, Run, RunRecord, ids_in

_MAKES = ("compare.json", "cells.json")
"""Files of a comparison that list what it launched."""
_READS = (*_MAKES, "comparison.json", "runs.json", "solve.json", "recipe.yaml", "config.yaml")
"""Files of an entry that name the runs which it cannot do without: arms, probes, plans."""


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


Runs: TypeAlias = list[Run]
Entries: TypeAlias = list[tuple[Run, RunRecord]]


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

"""What a reference to a run means: an id, a name, a unique prefix of an id, `@latest`, or a path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from dynbench.errors import RunLookupError, did_you_mean
from dynbench.runs.names import NOT_NAMES, slug_of
from dynbench.runs.run import Run, current_status
from dynbench.runs.run_record import RunRecord

LATEST = "@latest"
_MATCHES_SHOWN = 5

Runs: TypeAlias = list[Run]
Entries: TypeAlias = list[tuple[Run, RunRecord]]


def resolve_ref(
    ref: str, root: Path, list_folders: Callable[[], Iterable[Run]], list_entries: Callable[[], Entries]
) -> Run:
    """The run that a reference means.

    Args:
        ref: as for `RunStore.resolve`.
        root: the results folder.
        list_folders: its run folders, also those whose record cannot be read.
        list_entries: its runs with their records, oldest first.

    Raises:
        RunLookupError: nothing is meant, or more than one.
    """
    if ref.startswith("@"):
        return _latest(ref, root, list_entries())
    if os.sep in ref:
        return _at_path(ref)
    if ref not in NOT_NAMES and (root / ref / "run.json").is_file():
        return Run(root / ref)
    entries = list_entries()
    for run, record in entries:
        if record.name == ref:
            return run
    matches = [run for run in list_folders() if ref and run.id.startswith(ref)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        records = {run.path: record for run, record in entries}
        shown = ", ".join(_shown(run, records.get(run.path)) for run in matches[:_MATCHES_SHOWN])
        more = f" and {len(matches) - _MATCHES_SHOWN} more" if len(matches) > _MATCHES_SHOWN else ""
        raise RunLookupError(f"run {ref!r}: {len(matches)} ids begin so: {shown}{more}", "Give more of the id.")
    raise _unknown(f"run {ref!r}: not found in {root}", ref, entries)


def _latest(ref: str, root: Path, entries: Entries) -> Run:
    head, _, word = ref.partition(":")
    if head != LATEST:
        raise RunLookupError(f"run {ref!r}: not a reference", f"Known: {LATEST}, {LATEST}:WORD.")
    chosen = [run for run, record in entries if not word or word in (slug_of(run.id), record.command)]
    if chosen:
        return chosen[-1]
    words = {word for run, record in entries for word in (slug_of(run.id), record.command) if word}
    if word and words:
        raise RunLookupError(
            f"run {ref!r}: no such run in {root}. {did_you_mean(word, words)}".rstrip(),
            f"There are: {', '.join(sorted(words))}.",
        )
    raise _unknown(f"run {ref!r}: no run in {root}", ref, entries)


def _at_path(ref: str) -> Run:
    path = Path(ref)
    if not (path / "run.json").is_file():
        raise RunLookupError(f"run {ref!r}: not a run folder (no run.json in it)", "dynbench runs ls lists the runs.")
    return Run(path.resolve())


def _unknown(message: str, ref: str, entries: Entries) -> RunLookupError:
    if not entries:
        return RunLookupError(message, "There are no runs there yet; dynbench train --name NAME makes one.")
    known = [word for run, record in entries for word in (run.id, record.name) if word]
    return RunLookupError(f"{message}. {did_you_mean(ref, known)}".rstrip(), "dynbench runs ls lists the runs.")


def _shown(run: Run, record: RunRecord | None) -> str:
    return f"{run.id} ({'unreadable' if record is None else record.name or current_status(record)})"

"""What `dynbench runs rm` does with the runs that were chosen: ask, remove, say what went and what stays."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dynbench.cli.options import Settings
from dynbench.cli.output import answered, print_line
from dynbench.errors import UsageError
from dynbench.runs.groups import Removal, plan_removal, size_of
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import printable
from dynbench.units import format_bytes


def remove(
    settings: Settings,
    store: RunStore,
    named: Sequence[Run],
    unsuccessful: Sequence[Run],
    *,
    launches: bool | None,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Remove runs, and what was made for the comparisons among them where that is wanted; all of it or nothing.

    Args:
        settings: how to print.
        store: their registry.
        named: runs that were named; of a comparison among them it has to be said what becomes of its runs.
        unsuccessful: runs that ended early; what was made for a comparison among them stays unless `launches`.
        launches: remove what was made for comparisons, or leave it; None asks.
        force: also running ones.
        yes: do not ask.
        dry_run: only say what would go.

    Raises:
        RunLookupError: one of them cannot go, as `RunStore.check_removable`.
        UsageError: what has to be said was not, and cannot be asked for; or a folder cannot be deleted.
    """
    runs = list({run.path: run for run in (*named, *unsuccessful)}.values())
    for run in runs:
        store.check_removable(run, force)
    removal = plan_removal(store.root, runs, runs if launches else named, store.entries())
    if removal.members and launches is None:
        launches = _asked(named, len(removal.members), yes or dry_run)
    if not launches:
        removal = Removal(runs, (), ())
    going = [*removal.members, *removal.runs]
    for run in going:
        store.check_removable(run, force)
    if going and not yes and not dry_run:
        _confirm(going)
    sizes = {run.id: size_of(run) for run in going}
    if not dry_run:
        for run in going:
            store.remove(run, force=force)
    _tell(settings, removal, going, sizes, dry_run)


def _asked(comparisons: Sequence[Run], members: int, silent: bool) -> bool:
    """Whether the runs of the comparisons go with them, asked on the terminal.

    Raises:
        UsageError: there is none, or it must not be asked.
    """
    names = " ".join(dict.fromkeys(run.label for run in comparisons))
    if silent or not sys.stdin.isatty():
        raise UsageError(
            f"runs rm {names}: not said whether what was made for it goes too (runs: {members})",
            "Give --with-launches to remove them too, or --keep-launches to leave them.",
        )
    return click.confirm(f"Made for {names}, runs: {members}. Remove them too?", err=True)


def _confirm(runs: Sequence[Run]) -> None:
    if not sys.stdin.isatty():
        raise UsageError("runs rm: cannot ask, as the input is not a terminal", "Give --yes to remove without asking.")
    for run in runs:
        click.echo(f"  {printable(str(run.path))}", err=True)
    click.confirm(f"Remove {len(runs)} run{'s' if len(runs) > 1 else ''}?", abort=True, err=True)


def _tell(settings: Settings, removal: Removal, going: Sequence[Run], sizes: dict[str, int], dry_run: bool) -> None:
    facts = {
        "dry_run": dry_run,
        "removed": [run.id for run in going],
        "bytes": sum(sizes.values()),
        "kept": [{"id": kept.run.id, "used_by": kept.used_by} for kept in removal.kept],
    }
    if answered(settings, "runs rm", facts, [str(run.path) for run in going]):
        return
    word = "would remove" if dry_run else "removed"
    for run in going:
        print_line(f"{word} {run.path}  {format_bytes(sizes[run.id])}")
    for kept in removal.kept:
        print_line(f"kept {kept.run.path}: {kept.used_by} reads it")
    if not going:
        print_line("Nothing to remove.")
    elif len(going) > 1:
        print_line(f"{word} {len(going)} runs, {format_bytes(sum(sizes.values()))}")

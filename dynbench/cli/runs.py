"""`dynbench runs`: the registry, listed, shown, exported and cleaned."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, print_lines
from dynbench.cli.options import FILE_PATH, command
from dynbench.errors import RunLookupError, UsageError

if TYPE_CHECKING:
    from dynbench.runs.store import RunStore

_log = logging.getLogger(__name__)

LS_EPILOG = """\b
Examples:
  dynbench runs ls --launches --limit 1              the newest comparison and its runs
  dynbench runs ls --status failed,lost --since 2d
  dynbench runs ls --command train --name 'static-*' --json
"""
RM_EPILOG = """\b
Examples:
  dynbench runs rm runA runB
  dynbench runs rm my-comparison --with-launches --dry-run
  dynbench runs rm --failed --yes
"""


@click.group()
def runs() -> None:
    """List, show, export and remove runs.

    REF is an id, a unique prefix of one, a name, `@latest`, `@latest:WORD` (a command, or the word within the id),
    or the path of a run folder.
    """


@command("ls", group=runs, table=True, epilog=LS_EPILOG)
@click.option("--command", metavar="NAME,…", help="What made it: train, solve, probe, compare, analyze.")
@click.option("--status", metavar="STATUS,…", help="Where it stands: completed, failed, running, lost, …")
@click.option("--name", metavar="GLOB", help="Names that fit, like 'static-*'.")
@click.option("--since", metavar="AGE|DATE", help="Made within 2d (m, h, d, w), or since 2026-11-20.")
@click.option("--dataset", metavar="NAME,…", help="What it was trained on.")
@click.option("--policy", metavar="NAME,…", help="Who got which samples; a comparison counts as its baseline.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The newest N; a comparison counts as one.")
@click.option("--launches", is_flag=True, help="The runs of a comparison, below it.")
def list_runs(
    settings: Settings, name: str | None, since: str | None, limit: int | None, launches: bool, **exact: str | None
) -> None:
    """Runs, oldest first; what was made for a comparison is counted in its line.

    A run is listed by itself where its comparison is not among those found.
    """
    from dynbench.cli.runs_show import chosen, entry_rows, matching, print_entries

    matches = matching(exact, name, since)
    store = settings.store()
    every = entry_rows(store.entries())
    rows = chosen([row for row in every if matches(row)], limit)
    if not settings.printed({"results": store.root, "runs": rows}, [str(row["id"]) for row in rows]):
        if rows:
            print_entries(every, rows, launches)
        elif every:
            print_lines(f"None of the {len(every)} runs in {store.root} is so. `dynbench runs ls` lists them.")
        else:
            print_lines(f"No runs in {store.root}. `dynbench train --name NAME` makes one.")
    _log_strangers(store)


@command(
    "show",
    group=runs,
    short_help="One run: record, settings, environment, files.",
    epilog="Example: dynbench runs show @latest",
)
@click.argument("ref", default="@latest")
def show_run(settings: Settings, ref: str) -> None:
    """One run: its record, where its configuration leaves the defaults, its environment, its files."""
    from dynbench.cli.runs_show import facts_of, print_facts

    run = settings.store().resolve(ref)
    shown = facts_of(run)
    if not settings.printed(shown, str(run.path)):
        print_facts(shown)


@command(
    "export",
    group=runs,
    short_help="Runs in one file, to compare with later and elsewhere.",
    epilog="Example: dynbench runs export runA runB -o base.zip",
)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("-o", "--output", type=FILE_PATH, required=True, help="The file, a zip.")
@click.option("--arm", metavar="NAME", help="Of a comparison: this arm alone.")
def export(settings: Settings, refs: Sequence[str], output: Path, arm: str | None) -> None:
    """Put runs, or those of one comparison, into one FILE, without logs, models, figures and profilers' traces.

    `dynbench analyze RUN... --against FILE` compares with it, `dynbench analyze FILE` analyzes its runs.
    """
    from dynbench.analysis.selection import export_runs

    exported, of_one_arm = export_runs(refs, settings.store(), output, arm)
    if not settings.printed({"runs": [run.id for run in exported], "path": output}, str(output)):
        traced = ", ".join(run.label for run in exported if any(run.profiler_dir.glob("*.trace.json")))
        print_lines(
            str(output),
            f"left out: profilers' traces of {traced}; they stay in their folders' profiler/" if traced else None,
            f"next  dynbench analyze {'RUN... --against ' if of_one_arm else ''}{shlex.quote(str(output))}",
        )


@command("rm", group=runs, epilog=RM_EPILOG)
@click.argument("refs", nargs=-1, metavar="REF...")
@click.option("--failed", is_flag=True, help="Every run that failed, was interrupted, ran out of memory, or is lost.")
@click.option(
    "--with-launches/--keep-launches",
    "launches",
    default=None,
    help="What was made for a comparison goes too, or stays.",
)
@click.option("--force", is_flag=True, help="Also runs that are running.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
def remove_runs(
    settings: Settings,
    refs: Sequence[str],
    failed: bool,
    launches: bool | None,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Remove runs with everything in their folders.

    REF is an id, a unique prefix of an id, a name, `@latest` or `@latest:WORD`, and never a path: what is not a run of
    the registry stays. A comparison is removed with or without what was made for it (its launches, their probes, its
    offline plans), which has to be said; of these, what another comparison or run reads stays. --failed leaves the
    completed launches of a comparison that failed, unless --with-launches is given.
    """
    from dynbench.cli.runs_show import confirm_removal, members_go_too, show_removal
    from dynbench.runs.run import UNSUCCESSFUL, current_status
    from dynbench.runs.store import plan_removal, size_of

    if not refs and not failed:
        raise UsageError("runs rm: no run named", "Name runs, or give --failed.")
    store = settings.store()
    if path := next((ref for ref in refs if os.sep in ref), None):
        raise RunLookupError(
            f"runs rm {path!r}: is a path", f"Name runs of {store.root} by id or name; dynbench runs ls lists them."
        )
    named = [store.resolve(ref, read=False) for ref in refs]
    strange = _log_strangers(store) if failed else ()
    ended = [run for run, it in store.entries() if current_status(it) in UNSUCCESSFUL] if failed else []
    wanted = list({run.path: run for run in [*named, *ended] if run in named or run.path not in strange}.values())
    for run in wanted:
        store.check_removable(run, force)
    members, in_use = plan_removal(store.root, wanted, wanted if launches else named, store.entries())
    if members and launches is None:
        launches = members_go_too(named, len(members), yes or dry_run)
    if not launches:
        members, in_use = [], {}
    going = [*members, *wanted]
    for run in members:
        store.check_removable(run, force)
    if going and not yes and not dry_run:
        confirm_removal(going)
    sizes = {run: size_of(run) for run in going}
    for run in () if dry_run else going:
        store.remove(run, force=force)
    show_removal(settings, sizes, in_use, dry_run)


def _log_strangers(store: RunStore) -> set[Path]:
    """Folders of the results folder that are no runs of it; those that look like a run are named on stderr."""
    from dynbench.runs.run import slug_of
    from dynbench.runs.store import strangers

    found = strangers(store.root)
    for path, reason in found:
        if slug_of(path.name) or (path / "run.json").exists():
            _log.info("%s: %s; `runs rm` leaves it alone", path, reason)
    return {path for path, _ in found}

"""`dynbench runs`: the registry, listed, shown, exported and cleaned."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options

if TYPE_CHECKING:
    from dynbench.runs.run import Run
    from dynbench.runs.run_record import RunRecord
    from dynbench.runs.store import RunStore

_log = logging.getLogger(__name__)


@click.group()
def command() -> None:
    """List, show, export and remove runs.

    REF is an id, a unique prefix of one, a name, `@latest`, `@latest:WORD` (a command, or the word within the id),
    or the path of a run folder.
    """


@command.command("ls", epilog="Example: dynbench runs ls --json")
@common_options
def list_runs(settings: Settings) -> None:
    """All runs, oldest first."""
    from dynbench.cli.output import print_json, print_line, print_table

    store = settings.store()
    rows = [_row(run, record) for run, record in store.entries()]
    if settings.as_json:
        print_json({"schema_version": 1, "command": "runs ls", "results": store.root, "runs": rows})
    elif settings.quiet:
        if rows:
            print_line("\n".join(str(row["id"]) for row in rows))
    elif rows:
        columns = ("id", "name", "command", "status", "created", "duration", "policy", "G", "B")
        print_table(columns, [_cells(row) for row in rows])
    else:
        print_line(f"No runs in {store.root}. `dynbench train --name NAME` makes one.")
    _tell_strangers(store)


@command.command(
    "show", short_help="One run: record, settings, environment, files.", epilog="Example: dynbench runs show @latest"
)
@click.argument("ref", default="@latest")
@common_options
def show_run(settings: Settings, ref: str) -> None:
    """One run: its record, where its configuration leaves the defaults, its environment, its files."""
    from dynbench.cli.output import print_json, print_line
    from dynbench.cli.runs_show import facts_of, print_facts

    run = settings.store().resolve(ref)
    shown = facts_of(run)
    if settings.as_json:
        print_json({"schema_version": 1, "command": "runs show", **shown})
    elif settings.quiet:
        print_line(str(run.path))
    else:
        print_facts(shown)


@command.command(
    "export",
    short_help="Runs in one file, to compare with later and elsewhere.",
    epilog="Example: dynbench runs export runA runB -o base.zip",
)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file, a zip.")
@click.option("--arm", metavar="NAME", help="Of a comparison: this arm alone.")
@common_options
def export(settings: Settings, refs: Sequence[str], output: Path, arm: str | None) -> None:
    """Put runs, or those of one comparison, into one FILE, without logs and figures.

    `dynbench analyze RUN... --against FILE` compares with it, `dynbench analyze FILE` analyzes its runs.
    """
    from dynbench.analysis.selection import export_runs
    from dynbench.cli.output import print_json, print_line

    runs = export_runs(refs, settings.store(), output, arm)
    if settings.as_json:
        exported = [run.id for run in runs]
        print_json({"schema_version": 1, "command": "runs export", "runs": exported, "path": output})
        return
    print_line(str(output))
    if not settings.quiet:
        print_line(f"next  dynbench analyze RUN... --against {shlex.quote(str(output))}")


@command.command("rm", epilog="Example: dynbench runs rm --failed --yes")
@click.argument("refs", nargs=-1, metavar="REF...")
@click.option("--failed", is_flag=True, help="Every run that failed, was interrupted, ran out of memory, or is lost.")
@click.option("--force", is_flag=True, help="Also runs that are running.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def remove_runs(settings: Settings, refs: Sequence[str], failed: bool, force: bool, yes: bool) -> None:
    """Remove runs with everything in their folders.

    REF is an id, a unique prefix of one, a name, `@latest` or `@latest:WORD`, and never a path: what is not a run of
    the registry stays.
    """
    from dynbench.cli.output import print_json, print_line
    from dynbench.errors import UsageError

    if not refs and not failed:
        raise UsageError("runs rm: no run named", "Name runs, or give --failed.")
    store = settings.store()
    runs = _chosen(store, refs, failed)
    for run in runs:
        store.check_removable(run, force)
    if runs and not yes:
        _confirm(runs)
    for run in runs:
        store.remove(run, force=force)
    if settings.as_json:
        print_json({"schema_version": 1, "command": "runs rm", "removed": [run.id for run in runs]})
    elif settings.quiet:
        if runs:
            print_line("\n".join(str(run.path) for run in runs))
    else:
        print_line("\n".join(f"removed {run.path}" for run in runs) or "Nothing to remove.")


def _chosen(store: RunStore, refs: Sequence[str], failed: bool) -> list[Run]:
    """The runs named, each once, then the failed ones.

    Raises:
        RunLookupError: a reference that means nothing, or a path.
    """
    from dynbench.errors import RunLookupError
    from dynbench.runs.run import current_status
    from dynbench.runs.status import UNSUCCESSFUL

    for ref in refs:
        if os.sep in ref:
            raise RunLookupError(
                f"runs rm {ref!r}: is a path", f"Name runs of {store.root} by id or name; dynbench runs ls lists them."
            )
    runs = [store.resolve(ref) for ref in refs]
    if failed:
        strange = {path for path, _ in _tell_strangers(store)}
        runs += [
            run for run, record in store.entries() if current_status(record) in UNSUCCESSFUL and run.path not in strange
        ]
    return list({run.path: run for run in runs}.values())


def _tell_strangers(store: RunStore) -> list[tuple[Path, str]]:
    """Folders of the results folder that are nobody's to touch; those that look like a run are told on stderr."""
    from dynbench.runs.foreign import strangers
    from dynbench.runs.names import slug_of

    found = strangers(store.root)
    for path, reason in found:
        if slug_of(path.name) or (path / "run.json").exists():
            _log.info("%s: %s; `runs rm` leaves it alone", path, reason)
    return found


def _confirm(runs: Sequence[Run]) -> None:
    from dynbench.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError("runs rm: cannot ask, as the input is not a terminal", "Give --yes to remove without asking.")
    for run in runs:
        click.echo(f"  {run.path}", err=True)
    click.confirm(f"Remove {len(runs)} run{'s' if len(runs) > 1 else ''}?", abort=True, err=True)


def _row(run: Run, record: RunRecord) -> dict[str, object]:
    """What `ls` says about a run; what the configuration does not tell is None."""
    from dynbench.errors import RecordError
    from dynbench.runs.run import current_status, duration_s

    row: dict[str, object] = {
        "id": run.id,
        "name": record.name,
        "command": record.command,
        "status": current_status(record),
        "created": record.created,
        "duration_s": duration_s(record),
        "policy": None,
        "world_size": None,
        "global_batch": None,
        "path": run.path,
    }
    try:
        config = run.config()
    except RecordError:
        return row
    from dynbench.config.rules import known_world_size

    return row | {
        "policy": config.schedule.policy_name,
        "world_size": known_world_size(config),
        "global_batch": config.train.global_batch,
    }


def _cells(row: dict[str, object]) -> list[object]:
    from dynbench.cli.runs_show import shown_duration

    return [
        row["id"],
        row["name"],
        row["command"],
        row["status"],
        _when(str(row["created"])),
        shown_duration(row["duration_s"]),
        row["policy"],
        row["world_size"],
        row["global_batch"],
    ]


def _when(created: str) -> str:
    """A stored UTC time as local time, to the minute."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created

"""One run shown, and runs removed."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from dynbench.cli.next_command import next_command
from dynbench.cli.options import Settings
from dynbench.cli.output import answered, brief, print_line, print_pairs
from dynbench.config.digest import differences
from dynbench.config.schema import Config
from dynbench.errors import RecordError, UsageError
from dynbench.runs.lookup import Removal, plan_removal, size_of
from dynbench.runs.run import Run, current_status, duration_s
from dynbench.runs.store import RunStore
from dynbench.table_text import printable
from dynbench.units import format_bytes, format_ms

_log = logging.getLogger(__name__)
OF_ITS_COMPARISONS = "that of its comparisons; dynbench runs show says it of each"
OF_ITS_RUNS = "that of its runs; dynbench runs show says it of each"


def shown_duration(seconds: object) -> str:
    """Seconds in a readable unit; empty where they are unknown."""
    return format_ms(seconds * 1000) if isinstance(seconds, int | float) else ""


def facts_of(run: Run) -> dict[str, Any]:
    """Everything that a run folder says about itself; parts that cannot be read say why instead."""
    record = run.record()
    facts: dict[str, Any] = {
        "run": record.as_dict() | {"status": current_status(record), "path": run.path, "duration_s": duration_s(record)}
    }
    facts |= _comparison_facts(run)
    gathers = record.command in ("analyze", "compare")
    try:
        facts["config_differences"] = {
            key: {"default": default, "value": value}
            for key, (default, value) in differences(Config(), run.config()).items()
        }
    except RecordError as error:
        facts["config_differences"], facts["config_error"] = None, error.message
        if "cells" in facts:
            facts["config_error"] = OF_ITS_COMPARISONS
        elif gathers:
            facts["config_error"] = OF_ITS_RUNS
    try:
        facts["env"] = run.env()
    except RecordError as error:
        facts["env"], facts["env_error"] = None, error.message
        if gathers:
            facts["env_error"] = OF_ITS_RUNS
    facts["files"] = [
        {"path": str(path.relative_to(run.path)), "bytes": path.stat().st_size}
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    return facts


def _comparison_facts(run: Run) -> dict[str, object]:
    """The runs by arm and the verdicts of a comparison, and what comes next; empty for any other entry."""
    from dynbench.analysis.record import read_analysis  # with numpy

    root = run.path.parent
    try:
        if (run.path / "cells.json").is_file():
            return _cells_facts(run)
        if (run.path / "comparison.json").is_file():
            found = read_analysis(run.path)
            return {
                "arms": {arm.name: arm.runs for arm in found.arms},
                "verdicts": {item.candidate: f"{item.verdict}: {item.reason}" for item in found.comparisons},
                "next": next_command("report", run.label, root=root),
            }
        if (run.path / "compare.json").is_file():
            from dynbench.experiment.launch_plan import read_state

            resume = next_command("compare", "--resume", run.label, root=root)
            return {"arms": read_state(run.path).arms, "verdicts": {}, "next": resume}
    except RecordError as error:
        _log.warning("%s: the comparison cannot be read: %s", run.path, error.message)
    return {}


def _cells_facts(run: Run) -> dict[str, object]:
    """The comparisons that a folder is over, each with what sets it apart and how it stands."""
    from dynbench.experiment.cells import read_cells  # with all of analysis

    store = RunStore(run.path.parent)
    cells = [(cell, store.root / cell.comparison) for cell in read_cells(run).cells]
    states = [store.resolve(cell.comparison).status if path.is_dir() else "removed" for cell, path in cells]
    open_ones = any(state != "completed" for state in states)
    words = ("compare", "--resume", run.label) if open_ones else ("report", cells[0][0].comparison)
    return {
        "cells": [
            {"settings": cell.settings, "comparison": cell.comparison, "status": state}
            for (cell, _), state in zip(cells, states, strict=True)
        ],
        "next": next_command(*words, root=store.root),
    }


def print_facts(facts: dict[str, Any]) -> None:
    """Print what `facts_of` found."""
    run = facts["run"]
    failure = run.pop("failure")
    warnings = run.pop("warnings")
    run["argv"] = shlex.join(run["argv"])
    run["duration_s"] = shown_duration(run["duration_s"])
    print_pairs("run", {key.removesuffix("_s"): value for key, value in run.items() if value not in (None, "")})
    if failure:
        print_pairs("failure", {key: value for key, value in failure.items() if value is not None})
    for warning in warnings:
        print_line(f"warning: {warning}")
    title = "configuration"
    if "cells" in facts:
        texts = {item["comparison"]: f"{item['status']}  {brief(item['settings'])}" for item in facts["cells"]}
        print_pairs("comparisons", texts)
    if "arms" in facts:
        title = "configuration of the baseline"
        print_pairs("runs by arm", {name: ", ".join(ids) or "none completed" for name, ids in facts["arms"].items()})
        print_pairs("verdicts", facts["verdicts"] or {"": "not analyzed yet"})
    changed = facts["config_differences"]
    if changed is not None:
        texts = {key: f"{brief(item['value'])}  (default {brief(item['default'])})" for key, item in changed.items()}
        print_pairs(f"{title}, where it leaves the defaults", texts or {"": "nowhere"})
    else:
        print_line(f"configuration: {facts['config_error']}")
    if facts["env"] is not None:
        print_pairs(
            "environment", {key: brief(value) for key, value in facts["env"].items() if value not in (None, {}, "")}
        )
    else:
        print_line(f"environment: {facts['env_error']}")
    print_pairs("files", {item["path"]: format_bytes(item["bytes"]) for item in facts["files"]})
    if "next" in facts:
        print_line(f"next  {facts['next']}")


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

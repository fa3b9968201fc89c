"""What `dynbench runs` does: entries of the registry listed, one shown, some removed."""

from __future__ import annotations

import logging
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import click

from dynbench.cli.common import Columns, Settings, brief, next_command, print_lines, print_pairs, print_records
from dynbench.config.rules import known_world_size
from dynbench.config.schema import Config, differences
from dynbench.errors import RecordError, UsageError, unknown_name
from dynbench.runs.run import Run, Status, current_status, duration_s
from dynbench.runs.store import Entries, RunStore, groups_of
from dynbench.table_text import printable
from dynbench.units import format_bytes, format_ms, parse_duration_s

Row = dict[str, Any]
_log = logging.getLogger(__name__)
OF_ITS_COMPARISONS = "that of its comparisons; dynbench runs show says it of each"
OF_ITS_RUNS = "that of its runs; dynbench runs show says it of each"


def shown_duration(seconds: object) -> str:
    """Seconds in a readable unit; empty where they are unknown."""
    return format_ms(seconds * 1000) if isinstance(seconds, int | float) else ""


# Listed ---------------------------------------------------------------------------------------------------------------


def matching(exact: Mapping[str, str | None], name: str | None, since: str | None) -> Callable[[Row], bool]:
    """Whether an entry is wanted, by the options of `runs ls`; an option that is not given lets all through.

    Args:
        exact: key of a row to the values that it may have, separated by commas.
        name: pattern of the name, as of a shell.
        since: earliest time of creation; see `_moment`.

    Raises:
        UsageError: a status that is none, or a time that is none.
    """
    wanted = {key: [word.strip() for word in (text or "").split(",") if word.strip()] for key, text in exact.items()}
    for word in wanted.get("status", ()):
        if word not in tuple(Status):
            raise unknown_name(f"--status: {word!r} is no status", word, Status)
    begin = None if since is None else _moment(since)
    return lambda row: (
        all(not values or row[key] in values for key, values in wanted.items())
        and (name is None or fnmatchcase(str(row["name"] or ""), name))
        and (begin is None or datetime.fromisoformat(str(row["created"])) >= begin)
    )


def _moment(text: str) -> datetime:
    """The time that `--since` means: an age like `2d`, or a date or time of this machine's zone.

    Raises:
        UsageError: neither.
    """
    try:
        if text[-1:].isalpha():
            return datetime.now(UTC) - timedelta(seconds=parse_duration_s(text))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text}: is neither an age nor a date",
            "Give an age in minutes, hours, days or weeks (90m, 12h, 2d, 1w), or a date: 2026-11-20, 2026-11-20T14:30.",
        ) from None


def entry_rows(entries: Entries) -> list[Row]:
    """All entries, oldest first, each with its group and, of a comparison, with what was made for it."""
    groups = groups_of(entries)
    members: dict[str, list[str]] = {}
    for run, _ in entries:
        if run.id in groups:
            members.setdefault(groups[run.id], []).append(run.id)
    return [
        {
            "id": run.id,
            "name": record.name,
            "command": record.command,
            "status": str(current_status(record)),
            "created": record.created,
            "duration_s": duration_s(record),
            **_settings_of(run, record.command),
            "path": run.path,
            "group": groups.get(run.id),
            "members": members.get(run.id, []),
        }
        for run, record in entries
    ]


def _settings_of(run: Run, command: str) -> Row:
    """What the configuration tells; null where it does not.

    Solves and benchmarks have settings of their own, with several policies, ranks or batches.
    """
    unknown = dict.fromkeys(("policy", "dataset", "world_size", "global_batch"))
    if command in ("solve", "bench"):
        return unknown
    try:
        config = run.config()
    except RecordError:
        return unknown
    known = config.plan_name, config.workload.dataset, known_world_size(config), config.train.global_batch
    return dict(zip(unknown, known, strict=True))


def chosen(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """At most the newest `limit` of the rows, oldest first; a comparison and what was made for it count as one."""
    by_id = {row["id"]: row for row in rows}

    def top(row: Row) -> object:
        while row["group"] in by_id:
            row = by_id[row["group"]]
        return row["id"]

    tops = [row["id"] for row in _tops(rows)][-(limit or 0) :]
    return [row for row in rows if top(row) in tops]


def _tops(rows: Sequence[Row]) -> list[Row]:
    """The rows whose comparison is not among them."""
    ids = {row["id"] for row in rows}
    return [row for row in rows if row["group"] not in ids]


ENTRY_COLUMNS: Columns = {
    "id": "shown",
    "name": "name",
    "command": "command",
    "status": "status",
    "runs": "counts",
    "comparison": "comparison",
    "created": lambda row: datetime.fromisoformat(row["created"]).astimezone().strftime("%Y-%m-%d %H:%M"),
    "duration": lambda row: shown_duration(row["duration_s"]),
    "policy": "policy",
    "G": "world_size",
    "B": "global_batch",
}


def print_entries(every: Sequence[Row], rows: Sequence[Row], unfold: bool) -> None:
    """Print a line per entry: a comparison counts what was made for it, or has it indented below.

    What was made for a comparison that is not shown stands by itself and names it.

    Args:
        every: all of the registry.
        rows: those to be listed.
        unfold: list what was made for a comparison below it.
    """
    by_id = {row["id"]: row for row in every}
    lines: list[Row] = []

    def add(row: Row, depth: int) -> None:
        group = by_id.get(row["group"], {}).get("name") or row["group"]
        counts = _counted([by_id[member] for member in row["members"]])
        facts = {"shown": "  " * depth + row["id"], "counts": counts, "comparison": None if depth else group}
        lines.append({**row, **facts})
        if unfold:
            for member in rows:
                if member["group"] == row["id"]:
                    add(member, depth + 1)

    for row in _tops(rows):
        add(row, 0)
    unused = {key for key in ("counts", "comparison") if not any(line[key] for line in lines)}
    print_records({title: cell for title, cell in ENTRY_COLUMNS.items() if cell not in unused}, lines, rows)


def _counted(members: Sequence[Row]) -> str:
    """How many runs, and how many of them did not complete: `45, 1 failed`."""
    others = Counter(str(row["status"]) for row in members if row["status"] != "completed")
    return ", ".join([str(len(members)), *(f"{count} {status}" for status, count in others.items())]) if members else ""


# Shown ----------------------------------------------------------------------------------------------------------------


def facts_of(run: Run) -> dict[str, Any]:
    """Everything that a run folder says about itself; parts that cannot be read say why instead."""
    record = run.record()
    facts: dict[str, Any] = {
        "run": record.as_dict() | {"status": current_status(record), "path": run.path, "duration_s": duration_s(record)}
    }
    facts |= _comparison_facts(run)
    of_runs = OF_ITS_RUNS if record.command in ("analyze", "compare") else None
    of_config = OF_ITS_COMPARISONS if "cells" in facts else of_runs
    facts |= _readable("config_differences", "config_error", lambda: _differences(run.config()), of_config)
    facts |= _readable("env", "env_error", run.env, of_runs)
    facts["files"] = [
        {"path": str(path.relative_to(run.path)), "bytes": path.stat().st_size}
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    return facts


def _differences(config: Config) -> dict[str, object]:
    """Key to default and value, where a configuration leaves the defaults."""
    found = differences(Config(), config)
    return {key: {"default": default, "value": value} for key, (default, value) in found.items()}


def _readable(key: str, error_key: str, read: Callable[[], object], otherwise: str | None) -> dict[str, object]:
    """What is read under its key; where that cannot be, null, and why under the other key.

    Args:
        key: of what is read.
        error_key: of the reason.
        read: reads it, or raises `RecordError`.
        otherwise: the reason that is given in place of the error's message; None for that.
    """
    try:
        return {key: read()}
    except RecordError as error:
        return {key: None, error_key: otherwise or error.message}


def _comparison_facts(run: Run) -> dict[str, object]:
    """The runs by arm and the verdicts of a comparison, and what comes next; empty for any other entry."""
    from dynbench.analysis.record import COMPARISON_FILE, read_analysis  # with numpy

    def following(*words: str) -> str:
        return next_command(*words, root=run.path.parent)

    resume = ("compare", "--resume", run.label)
    try:
        if (run.path / "cells.json").is_file():
            cells = _cells(run)
            completed = all(cell["status"] == "completed" for cell in cells)
            return {"cells": cells, "next": following(*(("report", cells[0]["comparison"]) if completed else resume))}
        if (run.path / COMPARISON_FILE).is_file():
            found = read_analysis(run.path)
            verdicts = {item.candidate: f"{item.verdict}: {item.reason}" for item in found.comparisons}
            arms = {arm.name: arm.runs for arm in found.arms}
            return {"arms": arms, "verdicts": verdicts, "next": following("report", run.label)}
        if (run.path / "compare.json").is_file():
            from dynbench.experiment.launch_plan import read_state

            return {"arms": read_state(run.path).arms, "verdicts": {}, "next": following(*resume)}
    except RecordError as error:
        _log.warning("%s: the comparison cannot be read: %s", run.path, error.message)
    return {}


def _cells(run: Run) -> list[dict[str, Any]]:
    """The comparisons that a folder is over, each with what sets it apart and its status."""
    from dynbench.analysis.record import read_cells  # with polars

    store = RunStore.of(run)

    def status(comparison: str) -> str:
        return store.resolve(comparison).status if (store.root / comparison).is_dir() else "removed"

    return [
        {"settings": cell.settings, "comparison": cell.comparison, "status": status(cell.comparison)}
        for cell in read_cells(run.path).cells
    ]


def print_facts(facts: dict[str, Any]) -> None:
    """Print what `facts_of` found."""
    run, title = facts["run"], "configuration"
    failure, warnings = run.pop("failure"), run.pop("warnings")
    run |= {"argv": shlex.join(run["argv"]), "duration_s": shown_duration(run["duration_s"])}
    print_pairs("run", {key.removesuffix("_s"): value for key, value in run.items() if value not in (None, "")})
    if failure:
        print_pairs("failure", {key: value for key, value in failure.items() if value is not None})
    print_lines(*(f"warning: {warning}" for warning in warnings))
    if "cells" in facts:
        texts = {item["comparison"]: f"{item['status']}  {brief(item['settings'])}" for item in facts["cells"]}
        print_pairs("comparisons", texts)
    if "arms" in facts:
        title = "configuration of the baseline"
        print_pairs("runs by arm", {name: ", ".join(ids) or "none completed" for name, ids in facts["arms"].items()})
        print_pairs("verdicts", facts["verdicts"] or {"": "not analyzed yet"})
    if (changed := facts["config_differences"]) is None:
        print_lines(f"configuration: {facts['config_error']}")
    else:
        texts = {key: f"{brief(item['value'])}  (default {brief(item['default'])})" for key, item in changed.items()}
        print_pairs(f"{title}, where it leaves the defaults", texts or {"": "nowhere"})
    if facts["env"] is None:
        print_lines(f"environment: {facts['env_error']}")
    else:
        known = {key: brief(value) for key, value in facts["env"].items() if value not in (None, {}, "")}
        print_pairs("environment", known)
    print_pairs("files", {item["path"]: format_bytes(item["bytes"]) for item in facts["files"]})
    print_lines(f"next  {facts['next']}" if "next" in facts else None)


# Removed --------------------------------------------------------------------------------------------------------------


def members_go_too(comparisons: Sequence[Run], members: int, no_prompt: bool) -> bool:
    """Whether the runs of the comparisons go with them, asked on the terminal.

    Raises:
        UsageError: there is none, or it must not be asked.
    """
    names = " ".join(dict.fromkeys(run.label for run in comparisons))
    if no_prompt or not sys.stdin.isatty():
        raise UsageError(
            f"runs rm {names}: not said whether what was made for it goes too (runs: {members})",
            "Give --with-launches to remove them too, or --keep-launches to leave them.",
        )
    return click.confirm(f"Made for {names}, runs: {members}. Remove them too?", err=True)


def confirm_removal(runs: Sequence[Run]) -> None:
    """Ask on the terminal; ends the command where the answer is no.

    Raises:
        UsageError: there is none.
    """
    if not sys.stdin.isatty():
        raise UsageError("runs rm: cannot ask, as the input is not a terminal", "Give --yes to remove without asking.")
    for run in runs:
        click.echo(f"  {printable(str(run.path))}", err=True)
    click.confirm(f"Remove {len(runs)} run{'s' if len(runs) > 1 else ''}?", abort=True, err=True)


def show_removal(settings: Settings, sizes: Mapping[Run, int], in_use: Mapping[Run, str], dry_run: bool) -> None:
    """Say what went, or would go.

    Args:
        settings: how.
        sizes: the runs that go, to their bytes.
        in_use: runs that stay, to the name of what reads them.
        dry_run: nothing went.
    """
    facts = {
        "dry_run": dry_run,
        "removed": [run.id for run in sizes],
        "bytes": sum(sizes.values()),
        "kept": [{"id": run.id, "used_by": reader} for run, reader in in_use.items()],
    }
    if settings.printed(facts, [str(run.path) for run in sizes]):
        return
    word = "would remove" if dry_run else "removed"
    print_lines(
        *(f"{word} {run.path}  {format_bytes(size)}" for run, size in sizes.items()),
        *(f"kept {run.path}: {reader} reads it" for run, reader in in_use.items()),
        None if sizes else "Nothing to remove.",
        f"{word} {len(sizes)} runs, {format_bytes(sum(sizes.values()))}" if len(sizes) > 1 else None,
    )

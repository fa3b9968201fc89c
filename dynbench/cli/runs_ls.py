"""What `dynbench runs ls` lists: the registry's entries, those asked for, grouped by comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from dynbench.cli.runs_show import shown_duration
from dynbench.config.rules import known_world_size
from dynbench.errors import RecordError, UsageError, did_you_mean
from dynbench.runs.lookup import Entries, groups_of
from dynbench.runs.run import Run, current_status, duration_s
from dynbench.runs.run_record import RunRecord
from dynbench.runs.status import Status
from dynbench.units import parse_duration_s

Row = dict[str, object]
_INDENT = "  "


@dataclass(frozen=True)
class Wanted:
    """Which entries are listed; an empty condition holds for all.

    Attributes:
        exact: key of a row to the values that it may have.
        name: pattern of the name, as of a shell.
        since: earliest time of creation.
    """

    exact: Mapping[str, Sequence[str]]
    name: str | None = None
    since: datetime | None = None

    def holds(self, row: Row) -> bool:
        """Whether an entry is wanted."""
        return (
            all(not values or row[key] in values for key, values in self.exact.items())
            and (self.name is None or fnmatchcase(str(row["name"] or ""), self.name))
            and (self.since is None or datetime.fromisoformat(str(row["created"])) >= self.since)
        )


def statuses(text: str | None) -> list[str]:
    """The values of `--status`.

    Raises:
        UsageError: one that is none.
    """
    for word in words(text):
        if word not in tuple(Status):
            raise UsageError(
                f"--status: {word!r} is no status. {did_you_mean(word, tuple(Status))}".rstrip(),
                f"Known: {', '.join(Status)}.",
            )
    return words(text)


def words(text: str | None) -> list[str]:
    """The values of an option that takes several, separated by commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def moment(text: str | None) -> datetime | None:
    """The time that `--since` means: an age like `2d`, or a date or time of this machine's zone.

    Raises:
        UsageError: neither.
    """
    if text is None:
        return None
    try:
        if text[-1:].isalpha():
            return datetime.now(UTC) - timedelta(seconds=parse_duration_s(text))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text}: is neither an age nor a date",
            "Give an age in minutes, hours, days or weeks (90m, 12h, 2d, 1w), or a date: 2026-11-20, 2026-11-20T14:30.",
        ) from None


def rows_of(entries: Entries) -> list[Row]:
    """All entries, oldest first, each with its group and, of a comparison, with what was made for it."""
    groups = groups_of(entries)
    members: dict[str, list[str]] = {}
    for run, _ in entries:
        if run.id in groups:
            members.setdefault(groups[run.id], []).append(run.id)
    return [
        _row(run, record) | {"group": groups.get(run.id), "members": members.get(run.id, [])} for run, record in entries
    ]


def _row(run: Run, record: RunRecord) -> Row:
    """What `ls` says about a run by itself; what the configuration does not tell is None."""
    row: Row = {
        "id": run.id,
        "name": record.name,
        "command": record.command,
        "status": str(current_status(record)),
        "created": record.created,
        "duration_s": duration_s(record),
        "policy": None,
        "dataset": None,
        "world_size": None,
        "global_batch": None,
        "path": run.path,
    }
    if record.command in ("solve", "bench"):  # of settings of their own, with several policies, ranks or batches
        return row
    try:
        config = run.config()
    except RecordError:
        return row

    return row | {
        "policy": config.plan_name,
        "dataset": config.workload.dataset,
        "world_size": known_world_size(config),
        "global_batch": config.train.global_batch,
    }


def chosen(rows: Sequence[Row], wanted: Wanted, limit: int | None) -> list[Row]:
    """The rows wanted, oldest first; at most the newest `limit`, a comparison and what was made for it as one."""
    found = [row for row in rows if wanted.holds(row)]
    tops = {id(row) for row in _tops(found)[-limit:]} if limit else None
    by_id = {row["id"]: row for row in found}
    return [row for row in found if tops is None or id(_top(row, by_id)) in tops]


def table(rows: Sequence[Row], shown: Sequence[Row], unfold: bool) -> tuple[list[str], list[list[object]]]:
    """Header and cells: a comparison is a line that counts what was made for it, or has it indented below.

    What was made for a comparison that is not shown stands by itself and names it.

    Args:
        rows: all of the registry.
        shown: those to be listed.
        unfold: list what was made for a comparison below it.
    """
    every = {row["id"]: row for row in rows}
    lines: list[list[object]] = []

    def add(row: Row, depth: int) -> None:
        group = every.get(row["group"], {"name": None, "id": row["group"]})
        members = row["members"]
        assert isinstance(members, list)
        lines.append(
            [
                f"{_INDENT * depth}{row['id']}",
                row["name"],
                row["command"],
                row["status"],
                _counted([every[member] for member in members]),
                None if depth else group["name"] or group["id"],
                *_further(row),
            ]
        )
        if unfold:
            for member in shown:
                if member["group"] == row["id"]:
                    add(member, depth + 1)

    for row in _tops(shown):
        add(row, 0)
    header = ["id", "name", "command", "status", "runs", "comparison", "created", "duration", "policy", "G", "B"]
    used = [
        at for at, name in enumerate(header) if name not in ("runs", "comparison") or any(line[at] for line in lines)
    ]
    return [header[at] for at in used], [[line[at] for at in used] for line in lines]


def _tops(rows: Sequence[Row]) -> list[Row]:
    """The rows whose comparison is not among them."""
    ids = {row["id"] for row in rows}
    return [row for row in rows if row["group"] not in ids]


def _top(row: Row, by_id: Mapping[object, Row]) -> Row:
    while row["group"] in by_id:
        row = by_id[row["group"]]
    return row


def _counted(members: Sequence[Row]) -> str:
    """How many runs, and how many of them did not complete: `45, 1 failed`."""
    others = Counter(str(row["status"]) for row in members if row["status"] != "completed")
    return ", ".join([str(len(members)), *(f"{count} {status}" for status, count in others.items())]) if members else ""


def _further(row: Row) -> list[object]:
    return [
        _when(str(row["created"])),
        shown_duration(row["duration_s"]),
        row["policy"],
        row["world_size"],
        row["global_batch"],
    ]


def _when(created: str) -> str:
    """A stored UTC time as local time, to the minute."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created

"""How running out of memory was avoided in the runs of a report: capacities, the probe behind them, peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dynbench.analysis.measure import lookup
from dynbench.experiment.report_input import Json, Member, ReportInput


@dataclass(frozen=True)
class Ends:
    """Samples that fit, or were tested, at the shortest length and at the longest, tokens; least over the ranks."""

    shortest: int
    most: int
    longest: int
    least: int


@dataclass(frozen=True)
class Guard:
    """What capacity limited the plans of some arms.

    Attributes:
        arms: their names.
        kind: of the capacity: `none`; `unread`, none though some was probed; `missing` from the records; `given` by
            hand; from a `probe`; or `lost` with the probe's record.
        capacity: as configured.
        found: what the probe found as a limit; None where nothing failed.
        tested: what it tested where nothing failed; None where all lengths have a limit.
        margin: part of what passed that stays unused.
        limit_mb: of the probe's memory.
        soak: record of the soak at these capacities; None where there was none.
    """

    arms: Sequence[str]
    kind: Literal["none", "unread", "missing", "given", "lost", "probe"]
    capacity: str = ""
    found: Ends | None = None
    tested: Ends | None = None
    margin: float | None = None
    limit_mb: float | None = None
    soak: Json | None = None


def facts(subject: ReportInput) -> dict[str, object]:
    """What sentences are about."""
    peaks = [value for member in subject.members if (value := lookup(member.summary, "peak_mem_mb.max"))]
    return {
        "guards": list(guards(subject)),
        "peak_memory_mb": max(peaks, default=None),
        "available_memory_mb": _available(subject.first),
    }


def guards(subject: ReportInput) -> Iterator[Guard]:
    """One per capacity in use."""
    arms: dict[object, list[str]] = {}
    for name, members in subject.arms.items():
        config = members[0].config
        capacity = "missing" if config is None else config.get("schedule.capacity")
        arms.setdefault(tuple(capacity) if isinstance(capacity, list) else capacity, []).append(name)
    for value, names in arms.items():
        yield _guard(subject, value, names)


def _guard(subject: ReportInput, value: object, names: Sequence[str]) -> Guard:
    if value is None:
        return Guard(names, "unread" if subject.probes else "none")
    if value == "missing":
        return Guard(names, "missing")
    capacity = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    probe = subject.probes.get(capacity)
    if probe is None:
        given = all(part.strip().isdecimal() for part in capacity.split(","))
        return Guard(names, "given" if given else "lost", capacity)
    record, margin = _mapping(probe.get("record")), lookup(_mapping(probe.get("config")), "probe.margin")
    limit, soak, (found, tested) = lookup(record, "memory_limit_mb"), record.get("soak"), _tables(record)
    told = {"ok": False, "steps": None, "shrunk": None, **soak} if isinstance(soak, Mapping) else None
    return Guard(names, "probe", capacity, _ends(found), _ends(tested), margin, limit, told)


def _tables(record: Json) -> tuple[dict[int, int], dict[int, int]]:
    """Length to the least number of samples over the ranks: found as a limit, and tested where no rank has a limit."""
    rows = record.get("capacity")
    limited: dict[int, int] = {}
    free: dict[int, int] = {}
    for row in rows if isinstance(rows, Sequence) else ():
        if isinstance(row, Mapping) and isinstance(row.get("max_batch"), int):
            found = free if row.get("tested_fail") is None else limited
            length, samples = int(row["length"]), row["max_batch"]
            found[length] = min(samples, found.get(length, samples))
    return limited, {length: samples for length, samples in free.items() if length not in limited}


def _ends(found: Mapping[int, int]) -> Ends | None:
    if not found:
        return None
    shortest, longest = min(found), max(found)
    return Ends(shortest, found[shortest], longest, found[longest])


def _available(member: Member) -> float | None:
    """Memory of the first rank's device, else of the machine, MB."""
    devices = _mapping(member.env.get("devices")).get("ranks")
    first = devices[0] if isinstance(devices, list) and devices else {}
    of_device = lookup(_mapping(first), "memory_mb")
    return of_device if of_device is not None else lookup(member.env, "memory_mb.total")


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}

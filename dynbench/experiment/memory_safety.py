"""How running out of memory was avoided in the runs of a report: capacities, the probe behind them, peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbench.analysis.metrics import lookup
from dynbench.experiment.answers import Speaker, Texts
from dynbench.experiment.formats import number, percent
from dynbench.experiment.subject import Json, Member

OWN = tuple(
    f"memory.{key}"
    for key in (
        *("arms", "capacity", "margin", "limit", "steps", "shrunk", "found", "tested"),
        *("shortest", "longest", "most", "least", "peak", "there"),
    )
)
"""Placeholders that only these sentences use."""


def memory_sentences(speaker: Speaker) -> str:
    """One line per capacity in use, with the arms that have it, and one for the peaks."""
    arms: dict[str, list[str]] = {}
    for name, members in speaker.subject.arms.items():
        config = members[0].config
        capacity = "missing" if config is None else _name(config.get("schedule.capacity"))
        arms.setdefault(capacity, []).append(f"`{name}`")
    lines = [_sentence(speaker, capacity, ", ".join(names)) for capacity, names in arms.items()]
    return speaker.bullets([*lines, _peaks(speaker)])


def _name(capacity: object) -> str:
    match capacity:
        case None:
            return "none"
        case list():
            return ", ".join(map(str, capacity))
    return str(capacity)


def _sentence(speaker: Speaker, capacity: str, names: str) -> str:
    own: Texts = {"memory_arms": names, "memory_capacity": capacity}
    if capacity in ("none", "missing"):
        unread = capacity == "none" and speaker.subject.probes
        return speaker.say(f"memory.{'unread' if unread else capacity}", **own)
    probe = speaker.subject.probes.get(capacity)
    if probe is None:
        given = all(part.strip().isdecimal() for part in capacity.split(","))
        return speaker.say("memory.given" if given else "memory.lost", **own)
    record, config = _mapping(probe.get("record")), _mapping(probe.get("config"))
    limited, free = _tables(record)
    own |= {"memory_found": _ends(speaker, limited), "memory_tested": _ends(speaker, free)}
    margin, limit = config.get("probe.margin"), lookup(record, "memory_limit_mb")
    own["memory_margin"] = percent(float(margin)) if isinstance(margin, int | float) else None
    own["memory_limit"] = number(limit)
    soak = record.get("soak")
    own["memory_steps"] = number(lookup(record, "soak.steps"))
    own["memory_shrunk"] = number(lookup(record, "soak.shrunk"))
    kind = "none" if not isinstance(soak, Mapping) else "passed" if soak.get("ok") else "failed"
    said = ["probe", "probe_partly"] if limited and free else ["probe_free"] if free else ["probe"]
    return " ".join(speaker.say(f"memory.{key}", **own) for key in (*said, f"soak_{kind}"))


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


def _ends(speaker: Speaker, found: Mapping[int, int]) -> str | None:
    """How many samples of the shortest length and of the longest, once where they are the same; None without any."""
    if not found:
        return None
    shortest, longest = min(found), max(found)
    return speaker.say(
        f"memory.{'one' if shortest == longest else 'two'}",
        memory_shortest=number(shortest),
        memory_longest=number(longest),
        memory_most=number(found[shortest]),
        memory_least=number(found[longest]),
    ).strip()


def _peaks(speaker: Speaker) -> str:
    peaks = [value for member in speaker.subject.members if (value := lookup(member.summary, "peak_mem_mb.max"))]
    there = _available(speaker.subject.first)
    own = {"memory_peak": number(max(peaks, default=None)), "memory_there": number(there)}
    return speaker.say("memory.peak" if peaks else "memory.no_peak", **own)


def _available(member: Member) -> float | None:
    """Memory of the first rank's device, else of the machine, MB."""
    devices = _mapping(member.env.get("devices")).get("ranks")
    first = devices[0] if isinstance(devices, list) and devices else {}
    of_device = lookup(_mapping(first), "memory_mb")
    return of_device if of_device is not None else lookup(member.env, "memory_mb.total")


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}

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
        *("arms", "capacity", "margin", "limit", "steps", "shrunk"),
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
        return speaker.say(f"memory.{capacity}", **own)
    probe = speaker.subject.probes.get(capacity)
    if probe is None:
        given = all(part.strip().isdecimal() for part in capacity.split(","))
        return speaker.say("memory.given" if given else "memory.lost", **own)
    record, config = _mapping(probe.get("record")), _mapping(probe.get("config"))
    own |= _table(record)
    margin, limit = config.get("probe.margin"), lookup(record, "memory_limit_mb")
    own["memory_margin"] = percent(float(margin)) if isinstance(margin, int | float) else None
    own["memory_limit"] = number(limit)
    soak = record.get("soak")
    own["memory_steps"] = number(lookup(record, "soak.steps"))
    own["memory_shrunk"] = number(lookup(record, "soak.shrunk"))
    kind = "none" if not isinstance(soak, Mapping) else "passed" if soak.get("ok") else "failed"
    return f"{speaker.say('memory.probe', **own)} {speaker.say(f'memory.soak_{kind}', **own)}".strip()


def _table(record: Json) -> Texts:
    """The ends of the probed capacities, over all ranks."""
    rows = record.get("capacity")
    found = [
        (int(row["length"]), int(row["max_batch"]))
        for row in (rows if isinstance(rows, Sequence) else ())
        if isinstance(row, Mapping) and isinstance(row.get("max_batch"), int)
    ]
    if not found:
        return {f"memory_{key}": None for key in ("shortest", "longest", "most", "least")}
    (shortest, longest) = min(found)[0], max(found)[0]
    most, least = (min(n for length, n in found if length == end) for end in (shortest, longest))
    return {
        "memory_shortest": number(shortest),
        "memory_longest": number(longest),
        "memory_most": number(most),
        "memory_least": number(least),
    }


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

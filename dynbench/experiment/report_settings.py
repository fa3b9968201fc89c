"""What the arms are, on which data, and how they kept within memory: settings of a report, from its runs' records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynbench.analysis.measure import lookup
from dynbench.analysis.run_facts import fact, read_data, section
from dynbench.config.describe import all_keys
from dynbench.config.digest import NOT_IDENTITY
from dynbench.experiment.report_input import Json, Member, ReportInput
from dynbench.plugins.workloads import WORKLOADS
from dynbench.report import Template

COST_ROW = "cost"
"""Line of the planner's cost with its coefficients, among the keys of the configuration."""


def data_facts(source: ReportInput) -> dict[str, dict[str, object]]:
    """What sentences say of data, model and workload; None for what was not recorded."""
    config, env = source.first.config or {}, source.first.env
    name, path = str(config.get("workload.name")), config.get("workload.data_path")
    lengths = {key: lookup(env, f"data.lengths.{key}") for key in ("mean", "p50", "p95", "max")}
    data = {
        **lengths,
        "known": source.first.config is not None,
        "own": ":" in name,
        "has_lengths": lengths["mean"] is not None and source.has_lengths,
        "recorded": read_data(env, config.get("workload.max_length")),
        "name": config.get("workload.dataset"),
        "file": path and Path(str(path)).name,
        "samples": lookup(env, "data.train.samples"),
        "subset": config.get("workload.subset"),
    }
    model = {
        "name": config.get("workload.model"),
        "pretrained": config.get("workload.weights") != "random",
        "architecture": fact(env, "data.model.architecture"),
        "size": config.get("workload.size"),
        "layers": lookup(env, "data.model.layers"),
        "dim": lookup(env, "data.model.dim"),
    }
    workload = {"name": name, "digest": config.get("workload.code_digest")}
    return {"data": data, "model": model, "workload": workload}


def cost_of(member: Member, source: ReportInput) -> str | None:
    """The planner's cost of a run as a formula; None where its coefficients are not known."""
    config = member.config or {}
    # Runs of earlier versions all padded their micro-batches.
    padded = config.get("workload.layout", "padded") == "padded"
    tokens, squares = ("n·L", "n·L^2") if padded else ("Σ_i l_i", "Σ_i l_i^2")
    attention = f"{tokens} + {config.get('schedule.attention_a')}·{squares}"
    formulas = {"tokens": tokens, "tokens_sq": f"({tokens})^2", "attention": attention}
    cost = str(config.get("schedule.cost_type"))
    if cost == "measured" and (found := _coefficients(member, source)) is not None:
        alpha, beta, gamma = found
        return f"`measured`: *{alpha:.4g} + {beta:.4g}·{tokens} + {gamma:.4g}·{squares}* ms"
    return f"`{cost}`: *{formulas[cost]}*" if cost in formulas else None


def _coefficients(member: Member, source: ReportInput) -> Sequence[float] | None:
    """Alpha, beta and gamma of `measured`, ms: as configured, else those of the run's probe; None without either."""
    config = member.config or {}
    probe = source.probes.get(str(config.get("probe.run")), {})
    keys = ("alpha_ms", "beta_ms_per_token", "gamma_ms_per_token2")
    configured = config.get("schedule.cost_coefficients")
    found = configured if isinstance(configured, list) else [lookup(probe, f"record.cost_model.{key}") for key in keys]
    return [float(value) for value in found if isinstance(value, int | float)] if None not in found else None


def _value(members: Sequence[Member], key: str, source: ReportInput, template: Template) -> tuple[str, str | None]:
    """An arm's value of a key, and why it was chosen, where the program chose it."""
    known = [member for member in members if member.config is not None]
    if not known:
        return template.label("words.missing"), None
    if key == COST_ROW:
        return distinct(cost_of(member, source) for member in known) or template.label("words.missing"), None
    reason = _decision(known[0], key).get("reason")
    values = (
        member.config[key] if member.config and key in member.config else _decision(member, key).get("value")
        for member in known
    )
    return distinct(shown(value, template) for value in values) or "", str(reason) if reason else None


def _decision(member: Member, key: str) -> Json:
    """What the program decided of a key; empty where it did not."""
    return section(section(member.env, "decisions"), key)


def _values(source: ReportInput, template: Template) -> Iterator[tuple[str, dict[str, tuple[str, str | None]]]]:
    """Every setting, and its value in every arm: of the schema, of plug-ins not loaded here, and what was decided."""
    recorded = (key for member in source.members for key in member.config or ())
    decided = (str(key) for member in source.members for key in section(member.env, "decisions"))
    for key in dict.fromkeys((COST_ROW, *all_keys(), *recorded, *decided)):
        yield key, {name: _value(members, key, source, template) for name, members in source.arms.items()}


def arms_rows(source: ReportInput, template: Template) -> Iterator[dict[str, str]]:
    """The settings in which the arms differ, each with its reason where the program chose."""
    for key, cells in _values(source, template):
        if key not in NOT_IDENTITY and len({value for value, _ in cells.values()}) > 1:
            values = {f"={name}": f"{value} ({why})" if why else value for name, (value, why) in cells.items()}
            yield {"setting": _key_title(key, template), **values}


def common_rows(source: ReportInput, template: Template) -> Iterator[dict[str, str]]:
    """The settings that all arms share, defaults included, each with its reason where the program chose."""
    if all(member.config is None for member in source.members):
        return
    for key, cells in _values(source, template):
        found = dict(cells.values())
        if key in NOT_IDENTITY:
            seeds = {str(value) for one in source.members if (value := (one.config or {}).get(key)) is not None}
            value = ", ".join(sorted(seeds, key=lambda text: (len(text), text)))
        elif len(found) == 1:
            (value,) = found
        else:
            continue
        reasons = dict.fromkeys(why for _, why in cells.values() if why is not None)
        yield {"setting": _key_title(key, template), "value": value, "reason": "; ".join(reasons)}


def _key_title(key: str, template: Template) -> str:
    """The key as it is written, with what it means where the template says so."""
    if key == COST_ROW:
        return template.label("settings.cost_type")
    meaning = template.label(f"keys.{key}", "")
    return f"{meaning} (`{key}`)" if meaning else f"`{key}`"


def shown(value: object, template: Template) -> str:
    """A value of the configuration for reading; one that was left unset says so."""
    if value is None or value == []:
        return template.label("words.unset")
    if value == {}:
        return template.label("words.none")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dropout(source: ReportInput, template: Template) -> str | None:
    """The rates as the models got them; as configured where none was recorded, none where a model has no dropout."""
    found: list[object] = []
    for member in source.members:
        config, rates = member.config or {}, fact(member.env, "data.model.dropout")
        workload = WORKLOADS.get(str(config.get("workload.name")))
        if workload is not None and not workload.drops:
            found.append({})
        elif not isinstance(rates, Mapping):
            found.append(config.get("workload.dropout"))
        elif rates.get("dropout") is not None:
            found.append(rates["dropout"])
        else:
            found += [rate for rate in rates.values() if rate is not None] or [{}]
    return distinct(shown(rate, template) for rate in found if rate is not None)


def distinct(values: Iterable[object]) -> str | None:
    """The different values in order, None left out; None where there is no other."""
    found = dict.fromkeys(str(value) for value in values if value is not None)
    return ", ".join(found) if found else None


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


def memory_facts(subject: ReportInput) -> dict[str, object]:
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

"""What the arms are, on which data, and how they kept within memory: settings of a report, from its runs' records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dynbench.analysis.measure import lookup
from dynbench.analysis.run_facts import fact, read_data, section
from dynbench.analysis.tables import ranks_text
from dynbench.config.schema import NOT_IDENTITY
from dynbench.config.values import all_keys
from dynbench.experiment.report_input import Json, Member, ReportInput, in_language
from dynbench.report import Template
from dynbench.runs.phrase import Phrase
from dynbench.units import format_count

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


def distinct(values: Iterable[object]) -> str | None:
    """The different values in order, None left out; None where there is no other."""
    found = dict.fromkeys(str(value) for value in values if value is not None)
    return ", ".join(found) if found else None


FIRST_PAGE = (
    *("workload.name", "workload.dataset", "workload.model", "train.global_batch", "train.precision", "launch.device"),
)
"""Configuration keys that the first page names; the label of one is its last part, of a name that of its section."""


def settings(source: ReportInput, template: Template) -> dict[str, str | None]:
    """What was run, on what, by label, for the first page and `run_rows`; where runs differ, all values."""
    members = source.members
    configs = [member.config for member in members if member.config is not None]
    keys = {key.removesuffix(".name").rpartition(".")[2]: key for key in FIRST_PAGE}
    missing = template.label(f"words.{'not_measured' if configs else 'missing'}")
    facts: dict[str, str | None] = {
        **{label: distinct(shown(config.get(key), template) for config in configs) for label, key in keys.items()},
        "launcher": ranks_kind(source, template),
        "steps": _counts(members, "steps"),
        **dict(_run_facts(source, template)),
    }
    if model := fact(source.first.env, "data.model.source"):
        facts["model"] = in_language(template, fact(source.first.env, "data.model.said"), model)
    return {label: missing if text is None else text for label, text in facts.items()}


def run_rows(source: ReportInput, template: Template) -> Iterator[dict[str, str]]:
    """What is not among the settings: how the launches were made, and on what machine."""
    missing = template.label(f"words.{'not_measured' if source.first.config is not None else 'missing'}")
    for label, text in _run_facts(source, template):
        yield {"item": template.label(f"settings.{label}"), "value": missing if text is None else text}


def _run_facts(source: ReportInput, template: Template) -> Iterator[tuple[str, str | None]]:
    """Label and value; of the machine those of the first run's provenance. None where it was not recorded."""
    members, env, state = source.members, source.first.env, source.state
    if state is not None:
        yield "recipe", state.recipe
        yield "order", template.label(f"words.{state.mode}")
    yield "world_size", distinct(_ranks(member, template) for member in members)
    if any(member.serves for member in members):
        yield "workers", _counts(members, "workers")
    yield "launches", distinct(len(arm) for arm in source.arms.values())
    rates = (fact(member.env, "data.model.dropout") for member in members)
    known = ([each.get("dropout"), *each.values()] for each in rates if isinstance(each, Mapping))
    if dropout := distinct(next((rate for rate in each if rate is not None), None) for each in known):
        yield "dropout", dropout
    samples, memory_mb = lookup(env, "data.train.samples"), lookup(env, "memory_mb.total")
    yield "samples", None if samples is None else format_count(samples)
    yield "cpu", _processor(env, template)
    yield "memory", None if memory_mb is None else f"{memory_mb / 1000:.1f} GB"
    versions = section(env, "packages").items()
    yield "packages", ", ".join(f"{name} {version}" for name, version in versions if version) or None
    git = section(env, "git")
    changes = f", {template.label('words.local_changes')}" if git.get("dirty") else ""
    yield "commit", f"`{str(git.get('commit'))[:12]}`{changes}" if git else None


def ranks_kind(source: ReportInput, template: Template) -> str | None:
    """`real` or `virtual` in words; None when not recorded."""
    launcher = source.first.summary.get("launcher")
    return None if launcher is None else template.label(f"words.{'virtual' if launcher == 'virtual' else 'real'}")


def _processor(env: Json, template: Template) -> str | None:
    name, cores = env.get("cpu_model"), lookup(env, "cpu_cores.usable")
    if not name:
        return None
    processor = Phrase(f"{name}") if cores is None else Phrase.of("processor", name=name, cores=cores)
    return in_language(template, processor.record(), name)


def _counts(members: Sequence[Member], key: str) -> str | None:
    counts = (lookup(member.summary, key) for member in members)
    return distinct(format_count(count) for count in counts if count is not None)


def _ranks(member: Member, template: Template) -> str | None:
    """The number of ranks, marked where they share cores."""
    count, shared = lookup(member.summary, "world_size"), bool(member.summary.get("oversubscribed"))
    return None if count is None else ranks_text(int(count), int(count), shared, template.label)


def memory_facts(source: ReportInput) -> dict[str, object]:
    """What sentences are about; `guards` say for every capacity in use what limited the plans of its arms."""
    arms: dict[object, list[str]] = {}
    for name, members in source.arms.items():
        config = members[0].config
        capacity = "missing" if config is None else config.get("schedule.capacity")
        arms.setdefault(tuple(capacity) if isinstance(capacity, list) else capacity, []).append(name)
    peaks = [value for member in source.members if (value := lookup(member.summary, "peak_mem_mb.max"))]
    devices = section(source.first.env, "devices").get("ranks")
    of_device = lookup(devices[0], "memory_mb") if isinstance(devices, list) and devices else None
    return {
        "guards": [{"arms": names, **_guard(source, value)} for value, names in arms.items()],
        "peak_memory_mb": max(peaks, default=None),
        "available_memory_mb": lookup(source.first.env, "memory_mb.total") if of_device is None else of_device,
    }


def _guard(source: ReportInput, value: object) -> dict[str, object]:
    """What limited plans, by the kind of their capacity.

    That is `none`; `missing` from the records; `given` by hand; of a `probe`; or `lost` with the probe's record. Of a
    probe, `found` are the ends of the capacities that it found as a limit, `tested` those of the lengths at which
    nothing failed.
    """
    if value is None:
        return {"kind": "none"}
    if value == "missing":
        return {"kind": "missing"}
    capacity = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    probe = source.probes.get(capacity)
    if probe is None:
        given = all(part.strip().isdecimal() for part in capacity.split(","))
        return {"kind": "given" if given else "lost", "capacity": capacity}
    record = section(probe, "record")
    limits: dict[bool, dict[int, int]] = {True: {}, False: {}}
    rows = record.get("capacity")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row.get("max_batch"), int):
            found, length, samples = limits[row.get("tested_fail") is not None], int(row["length"]), row["max_batch"]
            found[length] = min(samples, found.get(length, samples))
    free = {length: samples for length, samples in limits[False].items() if length not in limits[True]}
    soak = section(record, "soak")
    return {
        "kind": "probe",
        "capacity": capacity,
        "found": _ends(limits[True]),
        "tested": _ends(free),
        "margin": lookup(section(probe, "config"), "probe.margin"),
        "limit_mb": lookup(record, "memory_limit_mb"),
        "soak": {"ok": False, "steps": None, "shrunk": None, **soak} if soak else None,
    }


def _ends(found: Mapping[int, int]) -> dict[str, int] | None:
    """Samples at the shortest length and at the longest, tokens; least over the ranks."""
    if not found:
        return None
    shortest, longest = min(found), max(found)
    return {"shortest": shortest, "most": found[shortest], "longest": longest, "least": found[longest]}

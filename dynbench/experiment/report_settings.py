"""What the arms are, and on which data: the settings of a report, every default included, from its runs' records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dynbench.analysis.measure import lookup
from dynbench.analysis.run_facts import fact, read_data
from dynbench.config.describe import all_keys
from dynbench.config.digest import NOT_IDENTITY
from dynbench.experiment.subject import Member, Subject
from dynbench.plugins.workloads import WORKLOADS
from dynbench.report import Template

COST_ROW = "cost"
"""Line of the planner's cost with its coefficients, among the keys of the configuration."""


def data_facts(subject: Subject) -> dict[str, dict[str, object]]:
    """What sentences say of data and model; None for what was not recorded."""
    config, env = subject.first.config or {}, subject.first.env
    name, path, size = str(config.get("workload.name")), config.get("workload.data_path"), config.get("workload.size")
    found = read_data(env, config.get("workload.max_length"))
    entry = WORKLOADS.get(name)
    data: dict[str, object] = {key: lookup(env, f"data.lengths.{key}") for key in ("mean", "p50", "p95", "max")}
    cut_samples, cut_tokens = found.train_cut or (None, None)
    data |= {
        "known": subject.first.config is not None,
        "own": ":" in name,
        "has_lengths": data["mean"] is not None and (entry is None or entry.lengths is not None),
        "evaluation": found.evaluation,
        "held_out": found.held_out,
        "cut_samples": cut_samples,
        "cut_tokens": cut_tokens,
        "cut_share": found.cut_share,
        "labels": found.named_labels or None,
        "name": config.get("workload.dataset"),
        "file": None if path is None else Path(str(path)).name,
        "samples": lookup(env, "data.train.samples"),
        "max_length": found.limit,
        "subset": config.get("workload.subset"),
    }
    model = {
        "name": config.get("workload.model"),
        "pretrained": config.get("workload.weights") != "random",
        "architecture": fact(env, "data.model.architecture"),
        "size": size,
        "shape": str(size).replace("auto", "small"),
        "layers": lookup(env, "data.model.layers"),
        "dim": lookup(env, "data.model.dim"),
    }
    workload = {"name": config.get("workload.name"), "digest": config.get("workload.code_digest")}
    return {"data": data, "model": model, "workload": workload}


def cost_of(member: Member, subject: Subject) -> str | None:
    """The planner's cost of a run as a formula; None where its coefficients are not known."""
    config = member.config or {}
    tokens, squares = ("n·L", "n·L^2") if fills_with_padding(member) else ("Σ_i l_i", "Σ_i l_i^2")
    match config.get("schedule.cost_type"):
        case "tokens":
            return f"`tokens`: *{tokens}*"
        case "tokens_sq":
            return f"`tokens_sq`: *({tokens})^2*"
        case "attention":
            return f"`attention`: *{tokens} + {config.get('schedule.attention_a')}·{squares}*"
        case "measured":
            found = coefficients(member, subject)
            if found is not None:
                alpha, beta, gamma = found
                return f"`measured`: *{alpha:.4g} + {beta:.4g}·{tokens} + {gamma:.4g}·{squares}* ms"
    return None


def fills_with_padding(member: Member) -> bool:
    """Whether a run pads its micro-batches; those of earlier versions all did."""
    return (member.config or {}).get("workload.layout", "padded") == "padded"


def coefficients(member: Member, subject: Subject) -> tuple[float, float, float] | None:
    """Alpha, beta and gamma of `measured`, ms: as configured, else those of the run's probe; None without either."""
    config = member.config or {}
    match config.get("schedule.cost_coefficients"):
        case [float() | int() as alpha, float() | int() as beta, float() | int() as gamma]:
            return float(alpha), float(beta), float(gamma)
    probe = subject.probes.get(str(config.get("probe.run")), {})
    keys = ("alpha_ms", "beta_ms_per_token", "gamma_ms_per_token2")
    match [lookup(probe, f"record.cost_model.{key}") for key in keys]:
        case [float() as alpha, float() as beta, float() as gamma]:
            return alpha, beta, gamma
    return None


def _arm_value(members: Sequence[Member], key: str, subject: Subject, template: Template) -> tuple[str, str | None]:
    """An arm's value of a key, and why it was chosen, where the program chose it."""
    known = [member for member in members if member.config is not None]
    if not known:
        return template.label("words.missing"), None
    if key == COST_ROW:
        return distinct(cost_of(member, subject) for member in known) or template.label("words.missing"), None
    decision = fact(known[0].env, "decisions")
    decided = decision.get(key) if isinstance(decision, Mapping) else None
    reason = str(decided["reason"]) if isinstance(decided, Mapping) and decided.get("reason") else None
    values = (
        member.config[key] if member.config and key in member.config else _decided_value(member, key)
        for member in known
    )
    return distinct(shown(value, template) for value in values) or "", reason


def _decided_value(member: Member, key: str) -> object:
    decisions = member.env.get("decisions")
    decided = decisions.get(key) if isinstance(decisions, Mapping) else None
    return decided.get("value") if isinstance(decided, Mapping) else None


def _keys(subject: Subject) -> dict[str, None]:
    """The keys of the configuration in order: those of the schema, then of plug-ins not loaded here."""
    recorded = (key for member in subject.members for key in member.config or ())
    return dict.fromkeys((*all_keys(), *recorded))


def _decided_elsewhere(subject: Subject) -> list[str]:
    """Decisions that are no key of the configuration, as how memory is measured."""
    found: dict[str, None] = {}
    for member in subject.members:
        decisions = member.env.get("decisions")
        if isinstance(decisions, Mapping):
            found |= dict.fromkeys(str(key) for key in decisions)
    return [key for key in found if key not in _keys(subject)]


def _seeds(subject: Subject, key: str) -> str:
    values = {_text(member.config.get(key)) for member in subject.members if member.config is not None}
    return ", ".join(sorted((value for value in values if value is not None), key=lambda text: (len(text), text)))


def _key_title(key: str, template: Template) -> str:
    """The key as it is written, with what it means where the template says so."""
    if key == COST_ROW:
        return template.label("settings.cost_type")
    meaning = template.label(f"keys.{key}", "")
    return f"{meaning} (`{key}`)" if meaning else f"`{key}`"


def shown(value: object, template: Template) -> str:
    """A value of the configuration for reading; one that was left unset says so."""
    match value:
        case None:
            return template.label("words.unset")
        case str():
            return value
        case []:
            return template.label("words.unset")
        case Mapping() if not value:
            return template.label("words.none")
    return json.dumps(value, ensure_ascii=False)


def dropout(subject: Subject, template: Template) -> str | None:
    """The rates as the models got them; as configured where none was recorded, none where a model has no dropout."""
    found: list[object] = []
    for member in subject.members:
        rates = fact(member.env, "data.model.dropout")
        config = member.config or {}
        workload = WORKLOADS.get(str(config.get("workload.name")))
        if workload is not None and not workload.drops:
            found.append({})
        elif isinstance(rates, Mapping):
            known = [rate for rate in (rates[key] for key in rates) if rate is not None]
            main = rates.get("dropout")
            found += [main] if main is not None else known or [{}]
        else:
            found.append(config.get("workload.dropout"))
    return distinct(shown(rate, template) for rate in found if rate is not None)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def distinct(values: Iterable[object]) -> str | None:
    """The different values in order, None left out; None where there is no other."""
    found = dict.fromkeys(str(value) for value in values if value is not None)
    return ", ".join(found) if found else None


def arms_rows(subject: Subject, template: Template) -> Iterator[dict[str, str]]:
    """The settings in which the arms differ, each with its reason where the program chose."""
    for key in (COST_ROW, *_keys(subject)):
        if key in NOT_IDENTITY:
            continue
        cells = {name: _arm_value(members, key, subject, template) for name, members in subject.arms.items()}
        if len({value for value, _ in cells.values()}) > 1:
            shown = {
                f"={name}": value if reason is None else f"{value} ({reason})"
                for name, (value, reason) in cells.items()
            }
            yield {"setting": _key_title(key, template), **shown}


def common_rows(subject: Subject, template: Template) -> Iterator[dict[str, str]]:
    """The settings that all arms share, defaults included, each with its reason where the program chose."""
    if all(member.config is None for member in subject.members):
        return
    for key in (COST_ROW, *_keys(subject), *_decided_elsewhere(subject)):
        cells = [_arm_value(members, key, subject, template) for members in subject.arms.values()]
        if len({value for value, _ in cells}) == 1 or key in NOT_IDENTITY:
            reasons = dict.fromkeys(reason for _, reason in cells if reason is not None)
            value = cells[0][0] if key not in NOT_IDENTITY else _seeds(subject, key)
            yield {"setting": _key_title(key, template), "value": value, "reason": "; ".join(reasons)}

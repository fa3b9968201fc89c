"""Configurations changed, compared by digest, and written; and what of them moves no number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import yaml

from dynbench.config.schema import Config
from dynbench.config.yaml_strict import use_core_schema
from dynbench.plugins import KINDS

NOT_IDENTITY = (
    *("train.seed", "launch.node_rank", "launch.rdzv_endpoint", "launch.rdzv_id"),
    *("workload.cache_dir", "workload.import_from"),
)
"""Keys in which launches of one arm may differ."""
WITHOUT_COMMUNICATION: Mapping[str, object] = {
    "sync.communicate": False,
    "compress.name": "none",
    "compress.gather": "none",
    "train.exposed": False,
    "train.memory_parts": False,
    "train.save_model": False,
    "train.tensorboard": False,
}
"""Settings of the same training without communication: the first, and those that it leaves without a use."""
SUFFIX = "-null"
"""Behind the name of its run, and of its arm."""
_UNICODE_BREAKS = ("\x85", "\u2028", "\u2029")
"""Line breaks of YAML 1.1, which PyYAML would fold into spaces unless they are escaped."""


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The configuration with other values, which are not validated.

    Args:
        config: what to change.
        changes: dotted key to a value of the field's type.
    """
    sections: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=fields) for section, fields in sections.items()}
    )


def value_of(config: Config, key: str) -> object:
    """The value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def recorded(config: Config, *, json: bool = False) -> dict[str, dict[str, object]]:
    """The sections as plain values; an option of plug-ins from outside only where it was set or the chosen one has it.

    So a run that uses none of the plug-ins that were loaded is recorded, and named, as one without them.

    Args:
        config: the configuration.
        json: with lists for tuples, and text keys.
    """
    sections: dict[str, dict[str, object]] = config.model_dump(mode="json" if json else "python")
    for _, registry in KINDS.values():
        section, _, field = registry.key.partition(".")
        for option, options in registry.options_from_outside().items() if section else ():
            chosen = registry.get(str(sections[section][field]))
            default = options.model_fields[option].get_default(call_default_factory=True)
            if value_of(config, f"{section}.{option}") == default and not (chosen and chosen.reads(option)):
                del sections[section][option]
    return sections


def flatten(config: Config) -> dict[str, object]:
    """Dotted key to plain value, in the schema's order; lists as lists, mappings with text keys."""
    return _flat(config.model_dump(mode="json"))


def differences(a: Config, b: Config) -> dict[str, tuple[object, object]]:
    """Dotted keys whose values differ, each with the value in `a` and in `b`."""
    left, right = flatten(a), flatten(b)
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def config_digest(config: Config, exclude: Sequence[str] = NOT_IDENTITY) -> str:
    """First 16 hex digits of the SHA-256 of the configuration; equal for configurations equal in what counts.

    Args:
        config: what to digest.
        exclude: dotted keys, or whole sections, that do not count.
    """
    counted = {
        key: value
        for key, value in _flat(recorded(config, json=True)).items()
        if key not in exclude and key.partition(".")[0] not in exclude
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def _flat(sections: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    return {f"{section}.{key}": value for section, fields in sections.items() for key, value in fields.items()}


def without_communication(config: Config) -> Config:
    """The same training over a wire that sends nothing."""
    return changed(config, WITHOUT_COMMUNICATION)


def is_like(null: Config, config: Config) -> bool:
    """Whether one configuration is the other without communication."""
    apart = differences(config, null).keys()
    return "sync.communicate" in apart and config.sync.communicate and apart <= WITHOUT_COMMUNICATION.keys()


class _CoreDumper(yaml.SafeDumper):
    """Quotes what YAML 1.2 would not read as text, so that `dump` and `load` agree."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def short_list(self, data: Sequence[object]) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def text(self, data: str) -> yaml.Node:
        style = '"' if any(break_ in data for break_ in _UNICODE_BREAKS) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


use_core_schema(_CoreDumper)
_CoreDumper.add_representer(str, _CoreDumper.text)
_CoreDumper.add_representer(list, _CoreDumper.short_list)
_CoreDumper.add_representer(tuple, _CoreDumper.short_list)


def dump_config(config: Config) -> str:
    """Every field with its value, defaults included, in the schema's order; of plug-ins' options, as `recorded`."""
    return dump_yaml(recorded(config))


def dump_yaml(mapping: Mapping[str, object], items: Sequence[str] = ()) -> str:
    """A mapping of plain values as YAML 1.2 text: keys in the given order, one a line, lists within theirs.

    Args:
        mapping: the values.
        items: keys of lists whose items get a line each.
    """
    lines = []
    for key, value in mapping.items():
        if key in items and isinstance(value, list | tuple) and value:
            lines += [f"{key}:\n", *(f"  - {_dump(item, flow=True)}" for item in value)]
        else:
            lines.append(_dump({key: value}, flow=False))
    return "".join(lines)


def _dump(value: object, *, flow: bool) -> str:
    text: str = yaml.dump(
        value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=2**31
    )
    return text

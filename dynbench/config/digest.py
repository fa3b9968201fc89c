"""Configurations compared: flat keys, differences, and a digest that names equal ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from dynbench.config.schema import Config
from dynbench.plugins import KINDS

NOT_IDENTITY = (
    *("train.seed", "launch.node_rank", "launch.rdzv_endpoint", "launch.rdzv_id"),
    *("workload.cache_dir", "workload.import_from"),
)
"""Keys in which launches of one arm may differ."""


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
            if getattr(getattr(config, section), option) == default and not (chosen and chosen.reads(option)):
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

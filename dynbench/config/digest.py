"""Configurations compared: flat keys, differences, and a digest that names equal ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dynbench.config.schema import Config

NOT_IDENTITY = (
    *("train.seed", "launch.node_rank", "launch.rdzv_endpoint", "launch.rdzv_id"),
    *("workload.cache_dir", "workload.import_from"),
)
"""Keys in which launches of one arm may differ."""


def flatten(config: Config) -> dict[str, object]:
    """Dotted key to plain value, in the schema's order; lists as lists, mappings with text keys."""
    sections: dict[str, dict[str, object]] = config.model_dump(mode="json")
    return {f"{section}.{key}": value for section, fields in sections.items() for key, value in fields.items()}


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
        for key, value in flatten(config).items()
        if key not in exclude and key.partition(".")[0] not in exclude
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]

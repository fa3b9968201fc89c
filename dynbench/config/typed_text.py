"""Values typed on a command line, and values as they would be typed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic.fields import FieldInfo

from dynbench.config import describe
from dynbench.config.yaml_strict import Value, parse_scalar
from dynbench.errors import ConfigError


def read_text(key: str, text: str, source: str) -> Value:
    """A value typed on the command line, read by what its field takes.

    Text fields keep what was typed (a path like `1e-4` stays text), lists may be written `8,4` or `8`, mappings
    `1:2,3:1.5`, and the rest is read as YAML.

    Args:
        key: dotted key that it is for; an unknown one is read as YAML.
        text: what was typed.
        source: how messages open.

    Raises:
        ConfigError: not YAML, where it must be.
    """
    found = describe.field_of(key)
    return parse_scalar(text, source) if found is None else read_field(*found, text, source)


def read_field(info: FieldInfo, below: Sequence[str], text: str, source: str) -> Value:
    """The same for a field.

    Args:
        info: the field.
        below: what of the key is left below it.
        text: what was typed.
        source: how messages open.

    Raises:
        ConfigError: not YAML, where it must be.
    """
    if describe.takes_list(info) and "," in text and not text.startswith("["):
        text = f"[{text}]"
    if not below and describe.takes_mapping(info) and ":" in text and not text.startswith("{"):
        text = f"{{{text.replace(':', ': ')}}}"
    try:
        value = parse_scalar(text, source)
    except ConfigError:
        if describe.takes_text(info):
            return text
        raise
    if not below and describe.takes_only_text(info) and value is not None and not isinstance(value, str):
        return text
    if describe.takes_list(info) and _one_of_a_list(info, value):
        return [value]
    return value


def _one_of_a_list(info: FieldInfo, value: Value) -> bool:
    """Whether a field that takes lists takes this only as one of a list."""
    if isinstance(value, str):
        return describe.takes_only_list(info)
    return not describe.takes_number(info) and isinstance(value, int | float)


def written(key: str, value: object) -> str:
    """The text that `read_text` reads as the value: plain where that is enough, else quoted as in JSON.

    Args:
        key: dotted key of the field.
        value: as the configuration holds it.
    """
    value = list(value) if isinstance(value, tuple) else value
    plain = _plain(value)
    try:
        same = read_text(key, plain.strip(), key) == value
    except ConfigError:
        same = False
    return plain if same else json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(map(_plain, value))
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return value if isinstance(value, str) else json.dumps(value)

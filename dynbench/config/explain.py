"""Pydantic's errors in our words: where, the key, the value, the nearest spelling, what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dynbench.config import describe
from dynbench.config.yaml_strict import Value
from dynbench.errors import did_you_mean, nearest
from dynbench.plugins import KINDS, outside
from dynbench.plugins.section import MOST, MOST_SEED


def explain(error: ValidationError, values: Value, where: Callable[[str], str]) -> list[str]:
    """One line per key in error; the alternatives of a union, which pydantic reports one by one, count as one.

    Args:
        error: what pydantic found.
        values: the mapping that was validated.
        where: how a line about a dotted key opens.
    """
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        location = tuple(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            dotted, text = ".".join(location), _unknown_key(location)
        else:
            dotted, text = _wrong_value(location, values)
        lines.setdefault(dotted, f"{where(dotted)}{dotted}: {text}")
    return list(lines.values())


def shown(value: Value) -> str:
    """A value as messages quote it: as YAML spells it, text in quotes."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _value(values: Value, path: Sequence[str]) -> Value:
    node = values
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _wrong_value(location: tuple[str, ...], values: Value) -> tuple[str, str]:
    """The dotted key that holds a wrong value, and what to say about it."""
    dotted = ".".join(location[:2])
    found = describe.field_of(dotted)
    if found is None:
        section = location[0]
        known = ", ".join(_section_keys(section))
        return section, f"{shown(_value(values, location[:1]))} is not a section; it holds the keys {known}"
    value = _value(values, location[:2])
    text = not_allowed(found[0], value)
    names_plugin = isinstance(value, str) and any(dotted == registry.key for _, registry in KINDS.values())
    return dotted, f"{text}{outside.or_your_own()}" if names_plugin else text


def not_allowed(info: FieldInfo, value: Value) -> str:
    """What to say about a value that a field does not take."""
    near = did_you_mean(value, describe.allowed_words(info)) if isinstance(value, str) else ""
    most = f"; whole numbers up to {MOST}, seeds to {MOST_SEED}" if isinstance(value, int) and value > MOST else ""
    allowed = f"Allowed: {describe.describe(info)}{most}"
    return " ".join(part for part in (f"{shown(value)} is not allowed.", near, allowed) if part)


def _unknown_key(location: tuple[str, ...]) -> str:
    parent = ".".join(location[:-1])
    known = _section_keys(parent)
    name = location[-1]
    homes = [key for key in describe.all_keys() if name in (key, key.rpartition(".")[2])]
    near = f"Did you mean {' or '.join(map(repr, homes))}?" if homes else _near(name, parent, known)
    if "." in name:
        near = "Write a section as a line of its own, with its keys indented below."
    return " ".join(part for part in ("unknown key.", near, f"Allowed: {', '.join(known)}") if part)


def _near(name: str, parent: str, known: Sequence[str]) -> str:
    """The nearest key of the section; at the top, where a key may lack its section, the nearest of all."""
    near = did_you_mean(name, known)
    if near or parent:
        return near
    spelled = {key.rpartition(".")[2]: key for key in reversed(describe.all_keys())}
    last = nearest(name, spelled)
    return f"Did you mean '{spelled[last]}'?" if last else ""


def _section_keys(dotted: str) -> tuple[str, ...]:
    section = describe.section_of(dotted)
    return tuple(section.model_fields) if section is not None else ()

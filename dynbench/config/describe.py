"""What settings mean, and where each value came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dynbench.config.schema import Config
from dynbench.config.yaml_strict import Value
from dynbench.errors import did_you_mean, nearest
from dynbench.plugins import KINDS, outside
from dynbench.plugins.registry import MOST, MOST_SEED

_KINDS: dict[object, str] = {
    str: "text",
    int: "number",
    float: "number",
    tuple: "list",
    dict: "mapping",
    NoneType: "null",
}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def field_of(dotted: str) -> tuple[FieldInfo, tuple[str, ...]] | None:
    """The field that a dotted key names, and what of the key is left below it (keys of a mapping field).

    None when the key names no field; a section is not a field.
    """
    section: type[BaseModel] = Config
    parts = dotted.split(".")
    for depth, part in enumerate(parts):
        info = section.model_fields.get(part)
        if info is None:
            return None
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            section = info.annotation
            continue
        return info, tuple(parts[depth + 1 :])
    return None


def default_of(dotted: str) -> object:
    """The default of the field that a dotted key names."""
    found = field_of(dotted)
    assert found is not None, f"{dotted} is a field"
    return found[0].get_default(call_default_factory=True)


def section_of(dotted: str) -> type[BaseModel] | None:
    """The section class that a dotted key names; the empty key is the whole configuration."""
    section: type[BaseModel] = Config
    for part in dotted.split(".") if dotted else ():
        info = section.model_fields.get(part)
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            return None
        section = info.annotation
    return section


def all_keys() -> tuple[str, ...]:
    """Every dotted key of the schema, in order."""
    keys: list[str] = []
    for name, info in Config.model_fields.items():
        section = info.annotation
        assert isinstance(section, type) and issubclass(section, BaseModel), "the schema is two levels deep"
        keys.extend(f"{name}.{key}" for key in section.model_fields)
    return tuple(keys)


def allowed_words(info: FieldInfo) -> tuple[str, ...]:
    """The fixed words that a field takes (`auto`, `static`, …)."""
    return tuple(str(word) for kind in _alternatives(info.annotation) for word in _literals(kind))


def kinds(info: FieldInfo) -> set[str]:
    """What a field takes: `text`, fixed `words`, `number`, `list`, `mapping`, `null`, or `other`."""
    found = set()
    for kind in map(_bare, _alternatives(info.annotation)):
        fixed = {type(word) for word in _literals(kind)} == {str}
        found.add("words" if fixed else _KINDS.get(get_origin(kind) or kind, "other"))
    return found


def describe(info: FieldInfo) -> str:
    """What a field allows, for error messages: `a whole number > 0, or auto`."""
    kinds = _alternatives(info.annotation)
    words = [", ".join(allowed_words(info))] if allowed_words(info) else []
    others = [_describe_kind(kind, info.metadata if len(kinds) == 1 else []) for kind in kinds if not _literals(kind)]
    parts = [part for part in others if part != "null"] + words + (["null"] if "null" in others else [])
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _alternatives(annotation: object) -> tuple[object, ...]:
    bare = _bare(annotation)
    if get_origin(bare) in (Union, UnionType):
        return tuple(kind for part in get_args(bare) for kind in _alternatives(part))
    return (annotation,)


def _bare(annotation: object) -> object:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _literals(annotation: object) -> tuple[object, ...]:
    bare = _bare(annotation)
    return get_args(bare) if get_origin(bare) is Literal else ()


def _describe_kind(annotation: object, metadata: list[object], plural: bool = False) -> str:
    bare = _bare(annotation)
    if get_origin(annotation) is Annotated:
        metadata = [*metadata, *get_args(annotation)[1:]]
    if bare is NoneType:
        return "null"
    if bare is str:
        named = next((item.description for item in metadata if isinstance(item, FieldInfo) and item.description), None)
        return named or ("texts" if plural else "text")
    if bare is bool:
        return "true or false"
    if bare in (int, float):
        noun = "whole number" if bare is int else "number"
        return f"{noun}s{_bounds(metadata)}" if plural else f"a {noun}{_bounds(metadata)}"
    arguments = get_args(bare)
    if get_origin(bare) is tuple:
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        return f"a list of {count}{_describe_kind(arguments[0], [], plural=True)}"
    if get_origin(bare) is Literal:
        return ", ".join(str(word) for word in get_args(bare))
    if get_origin(bare) is dict:
        return f"a mapping from {_describe_kind(arguments[0], [])} to {_describe_kind(arguments[1], [])}"
    if words := _literals(annotation):
        return ", ".join(map(str, words))
    return str(bare)


def _bounds(metadata: list[object]) -> str:
    items = [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else [item])]
    texts = [
        f"{sign} {getattr(item, name)}"
        for name, sign in _BOUNDS
        for item in items
        if getattr(item, name, None) not in (None, MOST, MOST_SEED)
    ]
    return f" {' and '.join(texts)}" if texts else ""


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
    found = field_of(dotted)
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
    near = did_you_mean(value, allowed_words(info)) if isinstance(value, str) else ""
    most = f"; whole numbers up to {MOST}, seeds to {MOST_SEED}" if isinstance(value, int) and value > MOST else ""
    allowed = f"Allowed: {describe(info)}{most}"
    return " ".join(part for part in (f"{shown(value)} is not allowed.", near, allowed) if part)


def _unknown_key(location: tuple[str, ...]) -> str:
    parent = ".".join(location[:-1])
    known = _section_keys(parent)
    name = location[-1]
    homes = [key for key in all_keys() if name in (key, key.rpartition(".")[2])]
    near = f"Did you mean {' or '.join(map(repr, homes))}?" if homes else _near(name, parent, known)
    if "." in name:
        near = "Write a section as a line of its own, with its keys indented below."
    return " ".join(part for part in ("unknown key.", near, f"Allowed: {', '.join(known)}") if part)


def _near(name: str, parent: str, known: Sequence[str]) -> str:
    """The nearest key of the section; at the top, where a key may lack its section, the nearest of all."""
    near = did_you_mean(name, known)
    if near or parent:
        return near
    spelled = {key.rpartition(".")[2]: key for key in reversed(all_keys())}
    last = nearest(name, spelled)
    return f"Did you mean '{spelled[last]}'?" if last else ""


def _section_keys(dotted: str) -> tuple[str, ...]:
    section = section_of(dotted)
    return tuple(section.model_fields) if section is not None else ()

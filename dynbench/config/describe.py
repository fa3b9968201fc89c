"""What settings mean, and what is wrong with a value that one does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

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


@cache
def _fields() -> Mapping[str, FieldInfo]:
    """Every field of the schema, which is two levels deep, by its dotted key, in order."""
    return {f"{section}.{name}": info for section in Config.model_fields for name, info in _section(section).items()}


def _section(name: str) -> Mapping[str, FieldInfo]:
    return cast(type[BaseModel], Config.model_fields[name].annotation).model_fields


def all_keys() -> tuple[str, ...]:
    """Every dotted key of the schema, in order."""
    return tuple(_fields())


def section_keys(section: str) -> tuple[str, ...]:
    """The keys within a section; of the empty one, the sections; none where there is no such section."""
    if not section:
        return tuple(Config.model_fields)
    return tuple(_section(section)) if section in Config.model_fields else ()


def field_of(dotted: str) -> tuple[FieldInfo, tuple[str, ...]] | None:
    """The field that a dotted key names, and what of the key is left below it (keys of a mapping field).

    None when the key names no field; a section is not a field.
    """
    parts = dotted.split(".")
    info = _fields().get(".".join(parts[:2]))
    return None if info is None else (info, tuple(parts[2:]))


def default_of(dotted: str) -> object:
    """The default of the field that a dotted key names."""
    return _fields()[dotted].get_default(call_default_factory=True)


def allowed_words(info: FieldInfo) -> tuple[str, ...]:
    """The fixed words that a field takes (`auto`, `static`, …)."""
    kinds = (kind for kind, _ in _alternatives(info.annotation) if get_origin(kind) is Literal)
    return tuple(str(word) for kind in kinds for word in get_args(kind))


def kinds(info: FieldInfo) -> set[str]:
    """What a field takes: `text`, fixed `words`, `number`, `list`, `mapping`, `null`, or `other`."""
    found = set()
    for kind, _ in _alternatives(info.annotation):
        fixed = {type(word) for word in get_args(kind)} == {str}
        found.add("words" if fixed else _KINDS.get(get_origin(kind) or kind, "other"))
    return found


def describe(info: FieldInfo) -> str:
    """What a field allows, for error messages: `a whole number > 0, or auto`."""
    kinds = list(_alternatives(info.annotation, info.metadata))
    words = [", ".join(allowed_words(info))] if allowed_words(info) else []
    null = ["null"] if (NoneType, ()) in kinds else []
    others = [_describe_kind(*kind) for kind in kinds if kind[0] is not NoneType and get_origin(kind[0]) is not Literal]
    parts = [*others, *words, *null]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _alternatives(annotation: object, metadata: Sequence[object] = ()) -> Iterator[tuple[Any, Sequence[object]]]:
    """The types of a union, or the type itself, each with its annotations."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*metadata, *more)
    if get_origin(annotation) not in (Union, UnionType):
        yield annotation, metadata
    else:
        for part in get_args(annotation):
            yield from _alternatives(part)


def _describe_kind(kind: Any, metadata: Sequence[object] = (), plural: bool = False) -> str:
    arguments, origin = get_args(kind), get_origin(kind)
    if kind is str:
        named = (item.description for item in metadata if isinstance(item, FieldInfo) and item.description)
        return next(named, "texts" if plural else "text")
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        noun = "whole number" if kind is int else "number"
        return f"{noun}s{_bounds(metadata)}" if plural else f"a {noun}{_bounds(metadata)}"
    if origin is tuple:
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        [(item, of_item)] = _alternatives(arguments[0])
        return f"a list of {count}{_describe_kind(item, of_item, plural=True)}"
    if origin is dict:
        (key, value) = (_describe_kind(*next(_alternatives(part))) for part in arguments)
        return f"a mapping from {key} to {value}"
    return ", ".join(map(str, arguments))


def _bounds(metadata: Sequence[object]) -> str:
    items = [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else [item])]
    bounds = [(sign, getattr(item, name, None)) for name, sign in _BOUNDS for item in items]
    texts = [f"{sign} {bound}" for sign, bound in bounds if bound not in (None, MOST, MOST_SEED)]
    return f" {' and '.join(texts)}" if texts else ""


def explain(error: ValidationError, values: Mapping[str, Value], where: Callable[[str], str]) -> list[str]:
    """One line per key in error; the alternatives of a union, which pydantic reports one by one, count as one.

    Args:
        error: what pydantic found.
        values: dotted key to the value that was validated.
        where: how a line about a dotted key opens.
    """
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        location = tuple(map(str, item["loc"]))
        if item["type"] == "extra_forbidden":
            dotted, text = ".".join(location), unknown_key(location)
        elif len(location) == 1:
            dotted, text = location[0], f"{shown(values.get(location[0]))} is not a section; it holds the keys "
            text += ", ".join(section_keys(dotted))
        else:
            dotted = ".".join(location[:2])
            value = values.get(dotted)
            text = not_allowed(_fields()[dotted], value)
            if isinstance(value, str) and any(dotted == registry.key for _, registry in KINDS.values()):
                text += outside.or_your_own()
        lines.setdefault(dotted, f"{where(dotted)}{dotted}: {text}")
    return list(lines.values())


def shown(value: Value) -> str:
    """A value as messages quote it: as YAML spells it, text in quotes."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def not_allowed(info: FieldInfo, value: Value) -> str:
    """What to say about a value that a field does not take."""
    near = did_you_mean(value, allowed_words(info)) if isinstance(value, str) else ""
    most = f"; whole numbers up to {MOST}, seeds to {MOST_SEED}" if isinstance(value, int) and value > MOST else ""
    allowed = f"Allowed: {describe(info)}{most}"
    return " ".join(part for part in (f"{shown(value)} is not allowed.", near, allowed) if part)


def unknown_key(location: Sequence[str]) -> str:
    """What to say about a key that a section, or the configuration, does not have; the nearest one is named.

    Args:
        location: the section, where there is one, and the key.
    """
    section, name = location[0] if len(location) > 1 else "", location[-1]
    known = section_keys(section)
    homes = [key for key in all_keys() if name in (key, key.rpartition(".")[2])]
    near = f"Did you mean {' or '.join(map(repr, homes))}?" if homes else did_you_mean(name, known)
    if not near and not section:  # a key may lack its section
        spelled = {key.rpartition(".")[2]: key for key in reversed(all_keys())}
        last = nearest(name, spelled)
        near = f"Did you mean '{spelled[last]}'?" if last else ""
    if "." in name:
        near = "Write a section as a line of its own, with its keys indented below."
    return " ".join(part for part in ("unknown key.", near, f"Allowed: {', '.join(known)}") if part)

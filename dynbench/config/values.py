"""The values that settings take: described, read from what was typed, and what is wrong with one that does not do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dynbench.config.schema import Config
from dynbench.config.yaml_strict import Value, parse_scalar
from dynbench.errors import ConfigError, did_you_mean, nearest
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
_OPENING = ("[", "{", '"', "'")
EMPTY = "nothing stands there; write null where that is meant, and quotes around a comma that is part of a value"

# Fields ---------------------------------------------------------------------------------------------------------------


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


def kinds_of(info: FieldInfo) -> set[str]:
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


# Typed on the command line --------------------------------------------------------------------------------------------


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
    found = field_of(key)
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
    kinds = kinds_of(info)
    if "list" in kinds and "," in text and not text.startswith("["):
        text = f"[{text}]"
    if not below and "mapping" in kinds and ":" in text and not text.startswith("{"):
        text = f"{{{text.replace(':', ': ')}}}"
    try:
        value = parse_scalar(text, source)
    except ConfigError:
        if "text" in kinds:
            return text
        raise
    is_text = isinstance(value, str)
    if not below and kinds <= {"text", "words", "null"} and value is not None and not is_text:
        return text
    is_number = isinstance(value, int | float) and "number" not in kinds
    one_of_a_list = kinds <= {"list", "null"} if is_text else is_number
    return [value] if "list" in kinds and one_of_a_list else value


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


def _split(text: str, source: str, problems: list[str]) -> list[str]:
    """The parts between commas; those within quotes, brackets and braces do not separate.

    A quote or bracket counts where a value begins, as in YAML: `it's` and `a[1]` are plain text.
    """
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_open(parts[-1]):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    if _is_open(parts[-1]):
        problems.append(f"{source}: {text}: {_value_of(parts[-1])[0]} is not closed")
        return []
    return [part.strip() for part in parts]


def _value_of(part: str) -> str:
    """What stands behind `key=`, or the whole of a part that has none."""
    key, equals, value = part.partition("=")
    return (value if equals and not key.strip().startswith(_OPENING) else part).strip()


def _is_open(part: str) -> bool:
    """Whether the value of a part is a quoted text, list or mapping that goes on behind the comma."""
    value = _value_of(part)
    if not value.startswith(_OPENING):
        return False
    try:
        parse_scalar(value, "")
    except ConfigError:
        return True
    return False


def read_settings(text: str, source: str, short: Mapping[str, str], problems: list[str]) -> dict[str, Value]:
    """The settings of `key=value,key=value` by dotted key, each value read as that of `--set`.

    A part without `=` goes on with the list or mapping before it: `capacity=6,5`, `slowdown=0:2,1:3`.

    Args:
        text: what was typed; nothing but spaces is no setting.
        source: how messages open, like `--arm part`.
        short: short names of keys, as `short_keys` gives them.
        problems: receives a line per mistake; what is mistaken is left out.
    """
    typed: list[tuple[str, str]] = []
    for part in _split(text, source, problems) if text.strip() else ():
        key, equals, raw = (piece.strip() for piece in part.partition("="))
        if equals and key and raw:
            typed.append((full_key(key, short), raw))
        elif not part or (equals and key):
            problems.append(f"{source}: {f'{key}: ' if key else ''}{EMPTY}")
        elif not equals and typed and _takes_several(typed[-1][0]):
            typed[-1] = (typed[-1][0], f"{typed[-1][1]},{part}")
        else:
            problems.append(f"{source}: {part}: write it as key=value, like {source}:train.global_batch=32")
    settings: dict[str, Value] = {}
    for key, raw in typed:
        clash = next((other for other in settings if overlap(key, other)), None)
        if clash is not None:
            problems.append(f"{source}: {key}: given twice" if clash == key else f"{source}: {key}: {clash} holds it")
            continue
        try:
            settings[key] = read_text(key, raw, f"{source}: {key}")
        except ConfigError as error:
            problems += error.problems
    return settings


def read_values(text: str, source: str, short: Mapping[str, str], problems: list[str]) -> tuple[str, list[Value]]:
    """The dotted key and the values of `key=value,value,…`; a list or mapping stands in its brackets.

    Args:
        text: what was typed.
        source: how messages open, like `--over`.
        short: short names of keys.
        problems: receives a line per mistake; what is mistaken is left out.
    """
    key, equals, rest = text.partition("=")
    if not equals or not key.strip():
        problems.append(f"{source} {text}: write it as key=value,value, like {source} train.global_batch=32,64")
        return "", []
    dotted = full_key(key.strip(), short)
    source = f"{source} {dotted}"
    values: list[Value] = []
    for raw in _split(rest, source, problems):
        if not raw:
            problems.append(f"{source}: {EMPTY}")
            continue
        try:
            value = read_text(dotted, raw, source)
        except ConfigError as error:
            problems += error.problems
            continue
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values):
            problems.append(f"{source}: {raw} is given twice")
        values.append(value)
    return dotted, values


def full_key(key: str, short: Mapping[str, str]) -> str:
    """The dotted key that a name means: itself, or by the short name that it begins with; an unknown one as it is."""
    head, dot, below = key.partition(".")
    spelled = head.replace("-", "_")
    if spelled in short and (not dot or not section_keys(head)):
        return f"{short[spelled]}{dot}{below}"
    return key


def short_keys(flags: Mapping[str, str]) -> dict[str, str]:
    """Short name to dotted key: the last part of every key that no other key ends in, and the flags.

    Args:
        flags: name of a flag without its dashes in front to dotted key.
    """
    keys = all_keys()
    lasts = [key.rpartition(".")[2] for key in keys]
    unique = {last: key for last, key in zip(lasts, keys, strict=True) if lasts.count(last) == 1}
    return {**unique, **{name.replace("-", "_"): key for name, key in flags.items()}}


def overlap(one: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one holds the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _takes_several(key: str) -> bool:
    """Whether a comma may stand in the value of a key without brackets around it."""
    found = field_of(key)
    return found is not None and not found[1] and not kinds_of(found[0]).isdisjoint(("list", "mapping"))

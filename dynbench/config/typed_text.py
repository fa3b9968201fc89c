"""Texts and YAML values as the types that settings have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic.fields import FieldInfo

from dynbench.config import describe
from dynbench.config.yaml_strict import Value, parse_scalar
from dynbench.errors import ConfigError

_OPENING = ("[", "{", '"', "'")
EMPTY = "nothing stands there; write null where that is meant, and quotes around a comma that is part of a value"


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
    kinds = describe.kinds(info)
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
    if spelled in short and (not dot or not describe.section_keys(head)):
        return f"{short[spelled]}{dot}{below}"
    return key


def short_keys(flags: Mapping[str, str]) -> dict[str, str]:
    """Short name to dotted key: the last part of every key that no other key ends in, and the flags.

    Args:
        flags: name of a flag without its dashes in front to dotted key.
    """
    keys = describe.all_keys()
    lasts = [key.rpartition(".")[2] for key in keys]
    unique = {last: key for last, key in zip(lasts, keys, strict=True) if lasts.count(last) == 1}
    return {**unique, **{name.replace("-", "_"): key for name, key in flags.items()}}


def overlap(one: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one holds the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _takes_several(key: str) -> bool:
    """Whether a comma may stand in the value of a key without brackets around it."""
    found = describe.field_of(key)
    return found is not None and not found[1] and not describe.kinds(found[0]).isdisjoint(("list", "mapping"))

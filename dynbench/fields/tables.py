"""The tables of fields as objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from dynbench.fields.classes import class_fields

TYPES = ("string", "integer", "number", "boolean", "object", "array", "any")
ORDER = ("records", "training", "comparison", "solve", "probe", "bench", "figures", "commands")
"""The tables, in the order of the page."""
UNITS = {
    "_ms": "ms",
    "_mb": "MB",
    "_s": "s",
    "_ns": "ns",
    "_samples_per_s": "samples/s",
    "_tokens_per_s": "tokens/s",
    "_tokens": "tokens",
    "_percent": "%",
    "_bytes": "bytes",
    "_ms_per_token": "ms/token",
    "_ms_per_token2": "ms/token²",
    "mape": "fraction",
    "_share": "fraction",
    "_fraction": "fraction",
}
_LINE = re.compile(
    r"(?P<type>[a-z_. ]+?)(?:, (?P<unit>(?!optional)[^,]+?))?(?P<optional>, optional)? - (?P<meaning>.+)"
)


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        path: dotted, with `[]` for items and `<name>` for any key.
        type: what its value is.
        meaning: what it says, and when an optional one is there.
        unit: empty for text and pure numbers.
        optional: it is not always there.
    """

    path: str
    type: str
    meaning: str
    unit: str = ""
    optional: bool = False

    @property
    def kind(self) -> str:
        """The type without `or null`."""
        return self.type.removesuffix(" or null")

    @property
    def nullable(self) -> bool:
        """Whether the value may be null; in a CSV, whether the cell may be empty."""
        return self.type.endswith(" or null")


@dataclass(frozen=True)
class Document:
    """A file, what a command prints, or a shape that several of these share.

    Attributes:
        name: of the file, `COMMAND --json`, or the shape's name, which types use.
        title: what it is, in a sentence.
        fields: in the order of the page.
        table: name of the YAML file that holds it.
        same: name of the shape that it is, whose fields it has; empty where it has its own.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    table: str
    same: str = ""

    @property
    def csv(self) -> bool:
        """Whether the fields are columns."""
        return self.name.endswith(".csv")

    @property
    def place(self) -> str:
        """Where a line for it goes."""
        return f"dynbench/fields/{self.table}.yaml, {self.name}"


@cache
def documents() -> Mapping[str, Document]:
    """All documents by name, in the order of the page."""
    found: dict[str, Document] = {}
    for table in ORDER:
        content = yaml.safe_load((Path(__file__).parent / f"{table}.yaml").read_text(encoding="utf-8"))
        for name, entry in content.items():
            fields = tuple(_fields(f"{table}.yaml, {name}", entry, found))
            found[name] = Document(name, entry["title"], fields, table, entry.get("same", ""))
    return found


def _fields(where: str, entry: Mapping[str, Any], earlier: Mapping[str, Document]) -> Iterator[Field]:
    """The fields of `with` (documents) and `from` (a class), less those of `without`, and those of `fields` (lines)."""
    found = {field.path: field for name in entry.get("with", ()) for field in earlier[name].fields}
    if "from" in entry:
        module, _, cls = entry["from"].partition(":")
        for path, kind, meaning in class_fields(getattr(import_module(module), cls)):
            found[path] = _with_unit(Field(path, kind, meaning))
    for path, unit in entry.get("units", {}).items():
        found[path] = replace(found[path], unit=unit)
    for name in entry.get("without", ()):
        found = {path: field for path, field in found.items() if not f"{path}.".startswith((f"{name}.", f"{name}["))}
    found |= {path: _parsed(where, path, line) for path, line in entry.get("fields", {}).items()}
    yield from found.values()


def _parsed(where: str, path: str, line: str) -> Field:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: {path}: {line!r} is not `TYPE[, UNIT][, optional] - meaning`")
    field = Field(path, match["type"], match["meaning"], match["unit"] or "", match["optional"] is not None)
    return field if field.unit else _with_unit(field)


def _with_unit(field: Field) -> Field:
    """The field with the unit that its name ends in, or that one of the objects around it does."""
    if not any(word in field.type for word in ("number", "integer")):
        return field
    for name in reversed(field.path.replace("[]", "").split(".")):
        endings = [ending for ending in UNITS if name.endswith(ending)]
        if endings:
            return replace(field, unit=UNITS[max(endings, key=len)])
    return field
